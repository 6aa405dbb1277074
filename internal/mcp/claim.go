package mcp

import "github.com/go-json-experiment/json/jsontext"

// claim is what can be read of the envelope of bytes that are no JSON-RPC
// message: cut off, no UTF-8, nested too deep, or with members that contradict
// each other.
type claim struct {
	ids []jsontext.Value
	// request says that there is a method, answer that there is something of an
	// answer: a log line in JSON has neither, and may well have an id.
	request, answer bool
}

// readClaim reads the members at the top of data as far as they can be told apart.
func readClaim(data []byte) claim {
	var c claim
	i := skipSpace(data, 0)
	if i == len(data) || data[i] != '{' {
		return c
	}
	for i++; ; i++ {
		i = skipSpace(data, i)
		end := skipString(data, i)
		if end < 0 {
			return c
		}
		name := memberName(data[i:end])
		if i = skipSpace(data, end); i == len(data) || data[i] != ':' {
			return c
		}
		switch name {
		case "method":
			c.request = true
		case "jsonrpc", "result", "error":
			c.answer = true
		}
		i = skipSpace(data, i+1)
		if end = skipValue(data, i); end < 0 || end == len(data) { // a number may have been cut
			return c
		}
		if name == "id" {
			c.ids = append(c.ids, jsontext.Value(data[i:end]))
		}
		if i = skipSpace(data, end); i == len(data) || data[i] != ',' {
			return c
		}
	}
}

// of reports whether it claims to answer the request n, among others perhaps.
func (c *claim) of(n uint64) bool {
	if c.request || !c.answer {
		return false
	}
	for _, id := range c.ids {
		if isID(id, n) {
			return true
		}
	}
	return false
}

// invalidAnswer is the fault of a call whose answer is no JSON-RPC message.
func invalidAnswer(server string, why error) *Fault {
	f := NewFault(KindProtocol, reasonInvalidMessage, "the server's answer is no JSON-RPC message: %v", why)
	f.Server = server
	return f
}

// isInvalidAnswer reports whether err is one of [invalidAnswer].
func isInvalidAnswer(err error) bool {
	f, ok := asFault(err)
	return ok && f.Reason == reasonInvalidMessage
}

const reasonInvalidMessage = "invalid_message"

// RequestID is the id that a refusal of data can carry: that of a request which
// is no valid message but whose id can be told, nil otherwise.
func RequestID(data []byte) jsontext.Value {
	c := readClaim(data)
	if !c.request || len(c.ids) != 1 || !c.ids[0].IsValid() {
		return nil
	}
	id := c.ids[0]
	if k := id.Kind(); k != '"' && (k != '0' || !isInteger(id)) {
		return nil
	}
	return id
}
