package mcp

import (
	"context"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// outcome is how a call ended, in few words: the result, or what error it was.
func outcome(result jsontext.Value, err error) string {
	if f, ok := asFault(err); ok {
		return string(f.Kind) + "/" + f.Reason
	}
	if err != nil {
		return err.Error()
	}
	return string(result)
}

func wantOutcome(t *testing.T, what string, result jsontext.Value, err error, want string) {
	t.Helper()
	if got := outcome(result, err); got != want {
		t.Errorf("%s: got %s, want %s (error %v)", what, shorten(got), want, err)
	}
}

func shorten(s string) string { return short(strings.ToValidUTF8(s, "?")) }

func toolCall(name string) *Call {
	return &Call{Method: MethodToolsCall, Params: jsontext.Value(`{"name":` + string(QuoteString(name)) + `,"arguments":{}}`)}
}

// closeConn is for the end of a test: it must not take long, nor fail.
func closeConn(t *testing.T, c Conn) {
	t.Helper()
	if err := c.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// long is beyond the limit of the connections that the tests make.
var long = strings.Repeat("x", DefaultMaxMessageBytes+1<<20)

// bomb is nested as no message may be.
var bomb = strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)

// odd is a result that a careless decoder would change.
const odd = `{ "content" : [{"type":"hologram","z":1, "a":2}],"big":12345678901234567890,"huge":1e400,"one":1.0,"dup":1,"dup":2,"s":"\u00e9\ud83d\ude00\/", "_meta":{"x":9007199254740993}}`
