package mcp

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// TestStdioModernLogs: log messages of a modern server name no call either, so
// calls that want them take turns among themselves and get their own, while all
// others run beside them (K7).
func TestStdioModernLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		loggers := 0
		c, _ := connectPeer(t, func(p *peer, m *Message) {
			switch {
			case m.Method == MethodDiscover:
				p.result(m, `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"logging":{}}}`)
			case m.Method != MethodToolsCall:
			case Field(Field(m.Params, "_meta"), MetaLogLevel) == nil:
				p.result(m, `{"plain":true}`)
			default:
				go func() {
					mu.Lock()
					if loggers++; loggers > 1 {
						t.Errorf("%s runs beside another that wants messages", FieldString(m.Params, "name"))
					}
					mu.Unlock()
					for i := range 3 {
						p.line(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"%s.%d"}}`, FieldString(m.Params, "name"), i)
						time.Sleep(time.Second)
					}
					mu.Lock()
					loggers--
					mu.Unlock()
					p.result(m, `{}`)
				}()
			}
		}, ConnectOptions{})
		defer closeConn(t, c)
		began := time.Now()
		var group sync.WaitGroup
		for i := range 3 {
			group.Go(func() {
				call := logging(fmt.Sprintf("n%d", i), "info")
				var got []string
				call.Notify = func(_ string, params jsontext.Value) { got = append(got, FieldString(params, "data")) }
				if _, err := c.Call(t.Context(), call); err != nil {
					t.Error(err)
				}
				if want := []string{fmt.Sprintf("n%d.0", i), fmt.Sprintf("n%d.1", i), fmt.Sprintf("n%d.2", i)}; !slices.Equal(got, want) {
					t.Errorf("call %d got %v, want %v", i, got, want)
				}
			})
		}
		for range 5 {
			group.Go(func() {
				time.Sleep(500 * time.Millisecond) // in the midst of the first
				call := toolCall("plain")
				call.Notify = func(method string, params jsontext.Value) {
					t.Errorf("a call that wants no messages got %s %s", method, params)
				}
				result, err := c.Call(t.Context(), call)
				wantOutcome(t, "plain", result, err, `{"plain":true}`)
				if took := time.Since(began); took != 500*time.Millisecond {
					t.Errorf("a call that wants no messages waited until %v", took)
				}
			})
		}
		group.Wait()
		if took := time.Since(began); took != 9*time.Second {
			t.Errorf("the three took %v", took)
		}
	})
}
