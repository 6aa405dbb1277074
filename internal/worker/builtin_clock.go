package worker

import (
	"context"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // so that zones are known where the system has none

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

type clockNowIn struct {
	Zone string `json:"zone,omitempty" jsonschema:"IANA time zone such as Europe/Berlin, default UTC"`
}

type clockConvertIn struct {
	Time string `json:"time" jsonschema:"RFC 3339 time, or a local time such as 2026-03-01T09:30 in the zone from"`
	From string `json:"from,omitempty" jsonschema:"IANA time zone of a time without an offset, default UTC"`
	To   string `json:"to" jsonschema:"IANA time zone to convert to"`
}

type clockOut struct {
	Time    string `json:"time" jsonschema:"RFC 3339"`
	Zone    string `json:"zone"`
	Weekday string `json:"weekday"`
	Unix    int64  `json:"unix" jsonschema:"seconds since 1970-01-01T00:00:00Z"`
}

// newClock makes the builtin server `clock`: the current time, and conversions
// between time zones.
func newClock(now func() time.Time) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "clock", Title: "Clock", Version: "1.0.0"}, &sdk.ServerOptions{Capabilities: &sdk.ServerCapabilities{}})
	hints := &sdk.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: new(false)}
	sdk.AddTool(s, &sdk.Tool{Name: "now", Title: "Current time", Description: "Tells the current date and time in a time zone.", Annotations: hints},
		func(_ context.Context, _ *sdk.CallToolRequest, in clockNowIn) (*sdk.CallToolResult, clockOut, error) {
			return clockResult(now(), in.Zone)
		})
	sdk.AddTool(s, &sdk.Tool{Name: "convert", Title: "Convert time", Description: "Converts a time from one time zone to another.", Annotations: hints},
		func(_ context.Context, _ *sdk.CallToolRequest, in clockConvertIn) (*sdk.CallToolResult, clockOut, error) {
			t, err := parseClockTime(in.Time, in.From)
			if err != nil {
				return nil, clockOut{}, err
			}
			return clockResult(t, in.To)
		})
	return s
}

func clockResult(t time.Time, zone string) (*sdk.CallToolResult, clockOut, error) {
	loc, err := clockZone(zone)
	if err != nil {
		return nil, clockOut{}, err
	}
	t = t.In(loc)
	out := clockOut{Time: t.Format(time.RFC3339), Zone: loc.String(), Weekday: t.Weekday().String(), Unix: t.Unix()}
	text := t.Format("Monday, 2 January 2006, 15:04:05 ") + loc.String() + t.Format(" (-07:00)")
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, out, nil
}

func clockZone(name string) (*time.Location, error) {
	// "Local" would tell callers about the machine, and is no IANA name.
	if name == "Local" || strings.HasPrefix(name, "/") {
		return nil, fmt.Errorf("unknown time zone %q, want an IANA name such as Europe/Berlin", name)
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("unknown time zone %q, want an IANA name such as Europe/Berlin", name)
	}
	return loc, nil
}

func parseClockTime(s, zone string) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	loc, err := clockZone(zone)
	if err != nil {
		return time.Time{}, err
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, loc); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("couldn't read the time %q, want RFC 3339 such as 2026-03-01T09:30:00+01:00, or 2026-03-01T09:30 in the zone `from`", s)
}
