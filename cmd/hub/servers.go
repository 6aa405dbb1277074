package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// serversCmd is `hub servers`.
type serversCmd struct {
	JSON bool `help:"Print everything that is known, as JSON."`

	hubFlags `embed:"" group:"Hub"`
}

// serverLine is what a person sees of a server.
type serverLine struct {
	ID        string    `json:"id"`
	State     string    `json:"state"`
	Era       string    `json:"era"`
	Version   string    `json:"version"`
	Tools     int       `json:"tools"`
	LatencyMS float64   `json:"latency_ms"`
	Attempts  int       `json:"attempts"`
	Reason    string    `json:"reason"`
	RetryAt   time.Time `json:"retry_at"`
}

// Run prints the servers in listing order.
func (s *serversCmd) Run(c *console) error {
	return s.withOperator(c, func(ctx context.Context, o *operator) error {
		raw, err := o.ask(ctx, "servers.list", struct{}{}, listTimeout, nil)
		if err != nil {
			return err
		}
		if s.JSON {
			return c.raw(raw)
		}
		list, err := decode[struct {
			Servers []serverLine `json:"servers"`
		}](raw)
		if err != nil {
			return err
		}
		if len(list.Servers) == 0 {
			fmt.Fprintf(c.err, "hub %s has no servers\n", o.hub)
			return nil
		}
		rows := [][]string{{"SERVER", "STATE", "ERA", "TOOLS", "LATENCY", ""}}
		for _, l := range list.Servers {
			rows = append(rows, []string{l.ID, l.State, strings.TrimSpace(l.Era + " " + l.Version), strconv.Itoa(l.Tools), l.latency(), l.note()})
		}
		return c.table(rows)
	})
}

func (l *serverLine) latency() string {
	if l.LatencyMS == 0 {
		return "-"
	}
	return strconv.FormatFloat(l.LatencyMS, 'f', 1, 64) + "ms"
}

// note says why a server is not up.
func (l *serverLine) note() string {
	var parts []string
	if l.Attempts > 0 {
		parts = append(parts, fmt.Sprintf("attempt %d", l.Attempts))
	}
	if wait := time.Until(l.RetryAt).Round(time.Second); wait > 0 {
		parts = append(parts, "again in "+wait.String())
	}
	if l.Reason != "" {
		parts = append(parts, shorten(oneLine(l.Reason), 100))
	}
	return strings.Join(parts, ", ")
}
