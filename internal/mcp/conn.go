package mcp

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Conn is one connection to one MCP server, in one era: [ConnectStdio] and
// [ConnectHTTP] make them. All methods may be called concurrently.
type Conn interface {
	// Call sends one request and waits for its answer, the raw result as the
	// server of that era sent it (a legacy result has no resultType). The
	// error is an [*Error] if the server answered with one, else a [*Fault];
	// when ctx ends first the server is told and the error is ctx's cause.
	// A call that may have reached the server when the connection broke is
	// reported with [ReasonOutcomeUnknown]; it is never sent twice.
	Call(ctx context.Context, call *Call) (jsontext.Value, error)
	// Subscribe has [ConnectOptions.OnResourceUpdated] told when the resource
	// changes, until Unsubscribe: the connection sees to it over renewed sessions
	// and streams that were lost. Who subscribes twice is subscribed once. It waits
	// until the server has taken it; an error, the server's own or a [*Fault],
	// among them one with [ReasonNotSubscribable], means that it has not.
	Subscribe(ctx context.Context, uri string) error
	// Unsubscribe ends that, soon. It never waits.
	Unsubscribe(uri string)
	// SubscribeTask and UnsubscribeTask are the same for a task of a modern server
	// and [ConnectOptions.OnTask].
	SubscribeTask(ctx context.Context, id string) error
	UnsubscribeTask(id string)
	// Info is what the server said of itself when the connection was made, or
	// when its session was last renewed.
	Info() *ServerInfo
	// Done is closed when the connection is of no use any more; Err says why.
	Done() <-chan struct{}
	// Err is the reason why Done is closed, nil before and after Close.
	Err() error
	// Close ends the connection and waits, within ctx, for all that it started.
	// Calls in flight fail at once.
	Close(ctx context.Context) error
}

// Call is one request to a server.
type Call struct {
	Method string
	// Params is the raw params in modern form: _meta has the caller's own
	// progress token, log level, capabilities and trace context. The Conn
	// translates it into what its era and its connection need: own request id,
	// own progress token, protocol version.
	Params jsontext.Value
	// Notify gets the notifications that belong to this call, in order, with
	// the caller's own progress token restored; all of them come before Call
	// returns, and on Call's own goroutine. It must not block for long. Nil
	// drops them.
	Notify func(method string, params jsontext.Value)
	// Request answers a request that a legacy server makes during this call
	// (elicitation, sampling, roots). Several may run at once. Its ctx ends with
	// the call, or when the server withdraws the request, and it must return
	// then. Nil refuses them with -32601.
	Request func(ctx context.Context, method string, params jsontext.Value) (jsontext.Value, *Error)
	// Waited is called, perhaps several times, when another call waits for this one
	// to end, because only one can run on the connection (stdio). It must not block,
	// nor use the connection. Nil: nobody wants to know.
	Waited func()
	// Headers are the Mcp-Param-* headers of a modern HTTP request, by name,
	// encoded ([ParamHeaderValues]).
	Headers map[string]string
	// Timeout bounds the wait for the answer. Each progress notification of the
	// call starts it anew, up to MaxTotal. Zero is no limit but ctx.
	//
	// Both limits begin when the call has its turn (stdio) and stand still
	// while Request is answering: a queue and a human have time of their own.
	Timeout time.Duration
	// MaxTotal bounds the whole call whatever progress it reports. Zero means
	// that progress does not extend Timeout.
	MaxTotal time.Duration
}

// EraChoice says which era a connection is to speak. Empty is [EraAuto].
type EraChoice string

// The era choices: EraAuto finds out by asking; [EraLegacy] and [EraModern],
// converted, pin one.
const EraAuto EraChoice = "auto"

// ListKind is one of the lists of a server that can change.
type ListKind string

// The lists that [ConnectOptions.OnListChanged] is about.
const (
	ListTools     ListKind = "tools"
	ListPrompts   ListKind = "prompts"
	ListResources ListKind = "resources"
)

// ConnectOptions is what [ConnectStdio] and [ConnectHTTP] have in common. The
// zero value works.
type ConnectOptions struct {
	// Server is the server's id in the hub, for faults and logs.
	Server string
	Era    EraChoice
	// Client is what the connection calls itself; the default name is toolhub.
	Client Implementation
	// Capabilities are what a legacy session declares; the default is form and
	// url elicitation and sampling. Modern requests carry their caller's own.
	Capabilities jsontext.Value
	// ProbeTimeout is how long an answer to server/discover is waited for
	// before initialize is tried. Default 5 s.
	ProbeTimeout time.Duration
	// RequestTimeout bounds each request that the connection makes by itself,
	// such as initialize. Default 60 s.
	RequestTimeout time.Duration
	// QueueTimeout bounds the wait for a turn on a stdio connection
	// (product rule T2). Default 30 s.
	QueueTimeout time.Duration
	// ListenIdleTimeout is how long a stream that waits for changes may be
	// silent before it is opened anew; comments count as traffic. Default 120 s.
	ListenIdleTimeout time.Duration
	// MaxMessageBytes bounds one message from the server: a JSON body, an event
	// and each line of one, a line of stdio. Default [DefaultMaxMessageBytes].
	MaxMessageBytes int
	// OnListChanged hears that a list changed, or may have (after a stream was
	// lost and opened again). Calls of it are never concurrent; it must not
	// block. Nil: changes are not listened for.
	OnListChanged func(ListKind)
	// OnResourceUpdated hears that a resource changed, or may have, because the
	// server could not tell for a while. Its URI can be that of a part of what was
	// subscribed to, and the server may tell of what nobody asked for. Calls of it
	// and of OnListChanged are never concurrent; it must not block. Nil: nothing can
	// be subscribed to.
	OnResourceUpdated func(uri string)
	// OnTask gets the params of notifications/tasks in the same way.
	OnTask func(params jsontext.Value)
	// Logger is for the operator; nil discards.
	Logger *slog.Logger
}

func (o ConnectOptions) withDefaults() (ConnectOptions, error) {
	switch o.Era {
	case "":
		o.Era = EraAuto
	case EraAuto, EraChoice(EraLegacy), EraChoice(EraModern):
	default:
		return o, NewFault(KindInvalid, "era", "era must be auto, legacy or modern, not %q", o.Era)
	}
	if o.Client.Name == "" {
		o.Client.Name = "toolhub"
	}
	if o.Client.Version == "" {
		o.Client.Version = "0"
	}
	if o.Capabilities == nil {
		o.Capabilities = jsontext.Value(`{"elicitation":{"form":{},"url":{}},"sampling":{}}`)
	}
	for _, d := range []struct {
		value *time.Duration
		or    time.Duration
	}{
		{&o.ProbeTimeout, 5 * time.Second},
		{&o.RequestTimeout, 60 * time.Second},
		{&o.QueueTimeout, 30 * time.Second},
		{&o.ListenIdleTimeout, 120 * time.Second},
	} {
		if *d.value <= 0 {
			*d.value = d.or
		}
	}
	if o.MaxMessageBytes <= 0 {
		o.MaxMessageBytes = DefaultMaxMessageBytes
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Logger = o.Logger.With("server", o.Server)
	return o, nil
}

// ServerInfo is what a server says of itself in server/discover or initialize.
type ServerInfo struct {
	Era     Era    `json:"era"`
	Version string `json:"protocolVersion"`
	// HTTP says that it is reached over HTTP, where calls of a modern server mirror
	// arguments into headers ([ParamHeaders]).
	HTTP bool `json:"http,omitzero"`
	// Server is for display only.
	Server       Implementation `json:"serverInfo"`
	Instructions string         `json:"instructions,omitempty"`
	// Capabilities is the raw capabilities object.
	Capabilities jsontext.Value `json:"capabilities,omitempty"`
}

// Has reports whether the server declared the capability (tools, logging, …).
func (i *ServerInfo) Has(capability string) bool { return Field(i.Capabilities, capability) != nil }

// listChanged is the lists whose changes the server says it announces.
func (i *ServerInfo) listChanged() []ListKind {
	var kinds []ListKind
	for _, kind := range []ListKind{ListTools, ListPrompts, ListResources} {
		if string(Field(Field(i.Capabilities, string(kind)), "listChanged")) == "true" {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

func asFault(err error) (*Fault, bool) { return errors.AsType[*Fault](err) }
