package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
)

// eventsCmd is `hub events`.
type eventsCmd struct {
	Filter string        `arg:"" optional:"" help:"Only those of kind.id.what, each of which may be * and the last of which may be left out: server, call.github, server.*.failed."`
	Since  time.Duration `placeholder:"1h" help:"Begin this long ago. Without it, and without --follow, with all that is kept."`
	Follow bool          `short:"f" help:"Go on with what happens from now on."`
	JSON   bool          `help:"Print each event as a line of JSON."`

	hubFlags `embed:"" group:"Hub"`
}

// quietTime ends a look at the past once no more events come.
const quietTime = 500 * time.Millisecond

// errQuiet ends a look at the past.
var errQuiet = errors.New("no more events")

// allKept is longer than events are kept.
const allKept = 10 * 365 * 24 * time.Hour

// Run prints events in order.
func (e *eventsCmd) Run(c *console) error {
	if e.Since < 0 {
		return usageError{"--since must be more than 0"}
	}
	filter := bus.EventFilter()
	if e.Filter != "" {
		parts := strings.Split(e.Filter, ".")
		if len(parts) > 3 {
			return usageError{fmt.Sprintf("%q has more than three parts; write kind.id.what, such as server.*.failed", e.Filter)}
		}
		filter = bus.EventFilter(parts...)
	}
	return e.withOperator(c, func(ctx context.Context, o *operator) error {
		since := e.Since
		if since == 0 && !e.Follow {
			since = allKept
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		var quiet *time.Timer
		if !e.Follow {
			quiet = time.AfterFunc(quietTime, func() { cancel(errQuiet) })
			defer quiet.Stop()
		}
		var failed error
		began := time.Now()
		err := o.conn.Events(ctx, filter, since, func(event bus.Event) {
			if quiet != nil {
				if event.Time.After(began) { // a busy hub is never quiet
					cancel(errQuiet)
					return
				}
				quiet.Reset(quietTime)
			}
			if failed == nil {
				if failed = e.show(c, event); failed != nil {
					cancel(failed)
				}
			}
		})
		if errors.Is(err, errQuiet) {
			return nil
		}
		return err
	})
}

type eventLine struct {
	ID      string    `json:"id"`
	Time    time.Time `json:"time"`
	Kind    string    `json:"kind"`
	Subject string    `json:"subject"`
	What    string    `json:"what"`
	Source  string    `json:"source"`
	Data    any       `json:"data,omitzero"`
}

func (e *eventsCmd) show(c *console, event bus.Event) error {
	if e.JSON {
		return c.line(eventLine(event))
	}
	_, err := fmt.Fprintf(c.out, "%s  %s.%s.%s%s\n", event.Time.Local().Format("2006-01-02 15:04:05.000"),
		oneLine(event.Kind), oneLine(event.Subject), oneLine(event.What), eventData(event.Data))
	return err
}

// eventData is the data of an event on one line, with two spaces before it.
func eventData(data any) string {
	raw, ok := data.(jsontext.Value)
	if !ok || raw == nil {
		return ""
	}
	var parts []string
	err := mcp.EachField(raw, func(name string, v jsontext.Value) error {
		text := string(v)
		if v.Kind() == '"' {
			text = mcp.FieldString(raw, name)
		}
		if text != "" && text != "null" {
			parts = append(parts, name+"="+shorten(oneLine(text), 120))
		}
		return nil
	})
	if err != nil {
		return "  " + shorten(oneLine(string(raw)), 200)
	}
	if len(parts) == 0 {
		return ""
	}
	return "  " + strings.Join(parts, " ")
}

// progress shows a person the state of the hub's servers as it changes.
func (n *node) progress(ctx context.Context, w io.Writer) {
	err := n.workerConn.Events(ctx, bus.EventFilter("server"), time.Minute, func(e bus.Event) {
		if e.Time.Before(n.started) {
			return // of an earlier run
		}
		fmt.Fprintf(w, "  %-20s %-9s%s\n", oneLine(e.Subject), oneLine(e.What), eventData(e.Data))
	})
	if err != nil && ctx.Err() == nil {
		n.log.Warn("the state of servers is not shown", "error", err)
	}
}
