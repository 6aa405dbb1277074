package worker

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
)

// stateFor is how long a caller may take to bring a requestState back.
const stateFor = time.Hour

// purposeState and purposeParked are what requestStates are sealed for. The
// latter has the worker behind it, which such a state names outside of its seal too.
const (
	purposeState  = "requestState"
	purposeParked = "requestState parked at "
)

// envelope is what callers get as requestState, sealed (K6): it brings the retry
// of a request to where its first round was, and fits no other request. The
// server's own state is in it as it is.
type envelope struct {
	Server    string `json:"server"`
	Principal string `json:"principal,omitzero"`
	Method    string `json:"method"`
	// Digest is that of the params (see digestParams).
	Digest string `json:"digest"`
	// Expires is in Unix milliseconds.
	Expires int64 `json:"expires"`
	// Replica is the one that asked.
	Replica int `json:"replica,omitzero"`
	// Place is where in its worker's lot the call waits, "" if the server has
	// answered and the retry is a new request to it.
	Place string `json:"place,omitzero"`

	own jsontext.Value // the server's state as it wrote it, nil if it gave none
}

// wrap makes the requestState of c's answer from where its call goes on.
func (c *call) wrap(replica int, place string, own jsontext.Value) (string, error) {
	digest, err := digestParams(c.message.Params)
	if err != nil {
		return "", err
	}
	plain, err := json.Marshal(&envelope{
		Server: c.server.id, Principal: c.in.Meta.Principal, Method: c.message.Method, Digest: digest,
		Expires: time.Now().Add(stateFor).UnixMilli(), Replica: replica, Place: place,
	})
	if err != nil {
		return "", err
	}
	plain = append(append(plain, '\n'), own...) // there is no other line end in compact JSON
	lot := c.server.lot
	if place == "" {
		return lot.seal.Close(purposeState, plain), nil
	}
	return bus.ParkState(lot.worker, lot.seal.Close(purposeParked+lot.worker, plain)), nil
}

// wrapAsk puts the state of a modern server's result that asks for input into an
// envelope. It does so where there is none, too: only so does the retry find the replica.
func (c *call) wrapAsk(value jsontext.Value, replica int) (jsontext.Value, error) {
	if e := c.mayAsk(value); e != nil {
		return nil, e
	}
	own := mcp.Field(value, "requestState")
	if own != nil && own.Kind() != '"' {
		return nil, mcp.NewFault(mcp.KindProtocol, "request_state", "the requestState of the server's result is no string")
	}
	state, err := c.wrap(replica, "", own)
	if err != nil {
		return nil, err
	}
	return mcp.Edit(value, mcp.Change{Name: "requestState", Value: mcp.QuoteString(state)})
}

// mayAsk is the error for a result that asks for what the caller has not declared
// (basic/patterns/mrtr): a server must not do so, and the caller could do nothing
// with it.
func (c *call) mayAsk(value jsontext.Value) error {
	requests := mcp.Field(value, "inputRequests")
	if requests.Kind() != '{' {
		return nil
	}
	able := abilitiesOf(c.params.meta)
	return mcp.EachField(requests, func(_ string, v jsontext.Value) error {
		refusal, required := able.refuse(mcp.FieldString(v, "method"), mcp.Field(v, "params"))
		switch {
		case refusal == nil:
			return nil
		case required == "":
			return mcp.NewFault(mcp.KindProtocol, "input", "the server asks for input by %.60q, which is none of the ways to", mcp.FieldString(v, "method"))
		}
		return missingCapability("the server asks for input by "+mcp.FieldString(v, "method")+", which the client did not declare", required)
	})
}

// unwrap opens the requestState that c has brought, nil if it has none. Whoever
// has that of another caller learns nothing, not even that it is one.
func (c *call) unwrap() (*envelope, error) {
	if c.params.state == nil {
		return nil, nil
	}
	refuse := func(reason, text string) (*envelope, error) {
		f := mcp.NewFault(mcp.KindInvalid, reason, "%s; make the request again without it", text)
		f.Server = c.server.id
		return nil, f
	}
	purpose, token := purposeState, mcp.Text(c.params.state)
	worker, secret, parked := bus.CutParkState(token)
	if parked {
		purpose, token = purposeParked+worker, secret
	}
	lot := c.server.lot
	plain, err := lot.seal.Open(purpose, token)
	if err != nil {
		return refuse(reasonUnknownState, "the requestState is none that this hub gave, or was changed")
	}
	head, own, _ := bytes.Cut(plain, []byte{'\n'})
	var e envelope
	if err := json.Unmarshal(head, &e); err != nil {
		return refuse(reasonUnknownState, "the requestState is of another version of the hub")
	}
	if len(own) > 0 {
		e.own = own
	}
	switch {
	case e.Server != c.server.id || e.Principal != c.in.Meta.Principal:
		return refuse(reasonUnknownState, "the requestState is none that this hub gave, or was changed")
	case time.Now().UnixMilli() >= e.Expires:
		return refuse(reasonUnknownState, "the requestState is more than an hour old")
	case parked && worker != lot.worker:
		return nil, unknownPlace(c.server.id)
	}
	// The policy decides about these params, and the server may have decided about the first ones.
	digest, err := digestParams(c.message.Params)
	if err != nil {
		return nil, err
	}
	if e.Method != c.message.Method || e.Digest != digest {
		return refuse(reasonOtherState, "the requestState belongs to another request, or one with other arguments")
	}
	return &e, nil
}

// Reasons of faults about a requestState.
const (
	reasonUnknownState = "unknown_request_state"
	reasonOtherState   = "other_request_state"
)

// unknownPlace is the error for a parked call that is not there any more.
func unknownPlace(server string) *mcp.Fault {
	f := mcp.NewFault(mcp.KindInvalid, reasonUnknownState, "no call waits under this requestState: it has ended, took too long, or its worker is gone; make the call again without it")
	f.Server = server
	return f
}

// digestParams is the same for two requests that want the same: white space and
// the order of members make no difference, nor does what differs from round to
// round. Numbers are the same if they are written the same.
func digestParams(params jsontext.Value) (string, error) {
	changes := []mcp.Change{{Name: "inputResponses"}, {Name: "requestState"}, {Name: "_meta"}}
	if args := mcp.Field(params, "arguments"); args != nil && emptyArguments(args) {
		changes = append(changes, mcp.Change{Name: "arguments"})
	}
	v, err := mcp.Edit(params, changes...)
	if err != nil {
		return "", err
	}
	if err := v.Format(jsontext.ReorderRawObjects(true), jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)); err != nil {
		return "", err
	}
	sum := sha256.Sum256(v)
	return hex.EncodeToString(sum[:16]), nil
}

// emptyArguments reports whether arguments are as good as absent.
func emptyArguments(args jsontext.Value) bool {
	switch args.Kind() {
	case 'n':
		return true
	case '{':
		inner := bytes.TrimSpace(args)
		return len(bytes.TrimSpace(inner[1:len(inner)-1])) == 0
	}
	return false
}
