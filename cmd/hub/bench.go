package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"

	"toolhub/internal/bus/embedded"
	"toolhub/internal/config"
	"toolhub/internal/daemon"
	"toolhub/internal/mcp"
)

// benchCmd is a load tool. In one run it compares the same request made
//
//	direct   to a server
//	hub      to a hub before that server
//	floor    to nobody: a POST to a handler that makes one NATS request
//	relay    to the server the way a hub has to go: POST, NATS request, POST
//
// in turn, so that what else the machine does meets all of them.
type benchCmd struct {
	Direct   string        `placeholder:"URL" help:"MCP endpoint of a server, to be called directly."`
	Backend  string        `placeholder:"COMMAND" help:"Instead of --direct: start this server; {addr} in it stands for the address it has to listen at."`
	Hub      string        `placeholder:"URL" help:"MCP endpoint of a hub before the same server. By default a hub runs in this process."`
	Tool     string        `default:"test_simple_text" help:"Tool to call, by the server's own name."`
	HubTool  string        `placeholder:"NAME" help:"The same tool by the name that the hub exposes, bench__TOOL by default."`
	Args     string        `default:"{}" placeholder:"JSON" help:"Arguments of the call."`
	Era      string        `enum:"modern,legacy" default:"modern" help:"Era of MCP that the client speaks, to the server and to the hub: modern or legacy. The hub in this process speaks the same to the server."`
	List     bool          `help:"Compare tools/list instead of tools/call."`
	Callers  []int         `default:"1,16,64" help:"How many call at the same time, one table row each."`
	Rounds   int           `default:"5" help:"How often each way has its turn."`
	Duration time.Duration `default:"1s" help:"How long a turn is."`
	JSON     bool          `help:"Print JSON."`
}

// benchReport is what hub bench --json prints.
type benchReport struct {
	Go     string `json:"go"`
	CPUs   int    `json:"cpus"`
	Era    string `json:"era"`
	Method string `json:"method"`
	Tool   string `json:"tool,omitzero"`
	// Tools and Bytes describe the answer of the server.
	Tools int        `json:"tools,omitzero"`
	Bytes int        `json:"bytes"`
	Rows  []benchRow `json:"rows"`
}

// benchRow is one way under one load: the medians of its turns. Allocations are
// those of this process: the client alone, for hub also the hub if it runs in it.
type benchRow struct {
	Callers       int     `json:"callers"`
	Way           string  `json:"way"`
	Calls         int     `json:"calls"`
	Failures      int     `json:"failures"`
	PerSecond     float64 `json:"per_second"`
	P50US         float64 `json:"p50_us"`
	P99US         float64 `json:"p99_us"`
	AllocsPerCall float64 `json:"allocs_per_call"`
	BytesPerCall  float64 `json:"bytes_per_call"`
	// Throughput and P50 are the medians of what each turn was against the turn
	// of direct in the same round.
	Throughput float64 `json:"throughput_ratio"`
	P50        float64 `json:"p50_ratio"`
	// Failure is one of the failures.
	Failure string `json:"failure,omitzero"`
}

// Run implements the command.
func (b *benchCmd) Run(c *console) error {
	if err := b.check(); err != nil {
		return err
	}
	return daemon.Run(c.err, func(ctx context.Context) error {
		dir, err := os.MkdirTemp("", "hub-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		report, err := b.measure(ctx, dir)
		if err != nil {
			return err
		}
		if b.JSON {
			return c.json(report)
		}
		return report.print(c)
	})
}

func (b *benchCmd) check() error {
	switch {
	case (b.Direct == "") == (b.Backend == ""):
		return usageError{"give either --direct URL or --backend COMMAND"}
	case b.Backend != "" && !strings.Contains(b.Backend, "{addr}"):
		return usageError{"--backend needs {addr} where the address belongs"}
	case b.Backend != "" && b.Hub != "":
		return usageError{"--hub goes with --direct"}
	case !jsontext.Value(b.Args).IsValid() || jsontext.Value(b.Args).Kind() != '{':
		return usageError{"--args must be a JSON object"}
	case b.Rounds < 1 || b.Duration <= 0 || slices.ContainsFunc(b.Callers, func(n int) bool { return n < 1 }):
		return usageError{"--rounds, --duration and --callers must be positive"}
	}
	if b.HubTool == "" {
		b.HubTool = "bench__" + b.Tool
	}
	return nil
}

// measure starts what has to be started, compares, and ends it again.
func (b *benchCmd) measure(ctx context.Context, dir string) (*benchReport, error) {
	direct := b.Direct
	if b.Backend != "" {
		url, stop, err := startBackend(ctx, b.Backend)
		if err != nil {
			return nil, err
		}
		defer stop()
		direct = url
	}
	legs := []leg{{name: "direct", url: direct}, {name: "hub", url: b.Hub}}
	for i, tool := range []string{b.Tool, b.HubTool} {
		b.request(&legs[i], tool)
	}
	first, err := until(ctx, &legs[0])
	if err != nil {
		return nil, err
	}
	if b.Hub == "" {
		url, stop, err := startBenchHub(ctx, dir, direct, b.Era)
		if err != nil {
			return nil, err
		}
		defer stop()
		legs[1].url = url
	}
	if _, err := until(ctx, &legs[1]); err != nil {
		return nil, err
	}
	if !b.List {
		floor, err := startFloor(ctx, dir, legs[0], first)
		if err != nil {
			return nil, err
		}
		defer floor.stop()
		legs = append(legs, floor.legs...)
	}

	report := &benchReport{Go: runtime.Version(), CPUs: runtime.GOMAXPROCS(0), Era: b.Era, Method: mcp.MethodToolsCall, Tool: b.Tool, Bytes: len(first)}
	if b.List {
		report.Method, report.Tool = mcp.MethodToolsList, ""
		report.Tools = countTools(first)
	}
	for _, callers := range b.Callers {
		rounds, err := compare(ctx, legs, callers, b.Rounds, b.Duration)
		if err != nil {
			return nil, err
		}
		report.add(callers, legs, rounds)
	}
	return report, nil
}

// request gives a leg the request of the comparison. That of the legacy era lacks
// the session, which [handshake] adds.
func (b *benchCmd) request(l *leg, tool string) {
	l.header = http.Header{
		"Content-Type": {"application/json"},
		"Accept":       {"application/json, text/event-stream"},
	}
	params := []string{}
	l.method = mcp.MethodToolsList
	if !b.List {
		l.method = mcp.MethodToolsCall
		params = append(params, `"name":`+string(mcp.QuoteString(tool)), `"arguments":`+b.Args)
	}
	if b.Era == string(config.EraLegacy) {
		l.header.Set(mcp.HeaderVersion, mcp.LatestLegacy)
	} else {
		l.header.Set(mcp.HeaderVersion, mcp.LatestModern)
		l.header.Set(mcp.HeaderMethod, l.method)
		if !b.List {
			l.header.Set(mcp.HeaderName, tool)
		}
		params = append(params, `"_meta":{"`+mcp.MetaProtocolVersion+`":"`+mcp.LatestModern+`","`+mcp.MetaClientCapabilities+`":{},`+
			`"`+mcp.MetaClientInfo+`":{"name":"hub-bench","version":"1"}}`)
	}
	l.params = jsontext.Value("{" + strings.Join(params, ",") + "}")
}

// handshake opens a session of the legacy era for a leg.
func handshake(ctx context.Context, l *load, leg *leg) error {
	c := &l.callers[0]
	header := leg.header.Clone()
	header.Del(mcp.HeaderVersion)
	answer, err := c.do(ctx, l.client, leg.url, header, mcp.AppendRequest(nil, mcp.IntID(0), mcp.MethodInitialize, jsontext.Value(
		`{"protocolVersion":"`+mcp.LatestLegacy+`","capabilities":{},"clientInfo":{"name":"hub-bench","version":"1"}}`)))
	if err == nil {
		err = answered(answer.StatusCode, c.body.Bytes())
	}
	if err != nil {
		return fmt.Errorf("couldn't open a session: %w", err)
	}
	if session := answer.Header.Get(mcp.HeaderSession); session != "" {
		leg.header.Set(mcp.HeaderSession, session)
	}
	answer, err = c.do(ctx, l.client, leg.url, leg.header, mcp.AppendRequest(nil, nil, mcp.NotifyInitialized, nil))
	if err == nil && answer.StatusCode/100 != 2 {
		err = fmt.Errorf("HTTP %d", answer.StatusCode)
	}
	if err != nil {
		return fmt.Errorf("couldn't open a session: %w", err)
	}
	return nil
}

// until waits for the first good answer of a way: what was just started needs a
// moment. It returns the body of the answer.
func until(ctx context.Context, leg *leg) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	l := newLoad(1)
	defer l.close()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var err error
		if leg.header.Get(mcp.HeaderVersion) == mcp.LatestLegacy && leg.header.Get(mcp.HeaderSession) == "" {
			err = handshake(ctx, l, leg)
		}
		if err == nil {
			err = l.callers[0].call(ctx, l.client, leg, leg.request(0))
		}
		if err == nil {
			return l.callers[0].body.Bytes(), nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s does not answer as it should: %w", leg.name, err)
		}
	}
}

// countTools is the number of tools in the answer to tools/list, which may be a
// stream with one event.
func countTools(answer []byte) int {
	_, after, found := strings.Cut(string(answer), "data:")
	if found && answer[0] != '{' {
		answer = []byte(after)
		if i := strings.IndexByte(after, '\n'); i > 0 {
			answer = answer[:i]
		}
	}
	var list struct {
		Result struct {
			Tools []jsontext.Value `json:"tools"`
		} `json:"result"`
	}
	if json.Unmarshal(answer, &list) != nil {
		return 0
	}
	return len(list.Result.Tools)
}

// startBackend starts a server at a free address.
func startBackend(ctx context.Context, command string) (url string, stop func(), err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	addr := ln.Addr().String()
	ln.Close()
	words := strings.Fields(strings.ReplaceAll(command, "{addr}", addr))
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // `go run` and the like start others
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("couldn't start the backend: %w", err)
	}
	return "http://" + addr + "/", func() {
		_ = cmd.Cancel()
		_ = cmd.Wait()
	}, nil
}

// startBenchHub runs a hub in this process with one server, the one at direct.
func startBenchHub(ctx context.Context, dir, direct, era string) (url string, stop func(), err error) {
	path := filepath.Join(dir, "hub.yaml")
	yaml := "hub: bench\nlisten: 127.0.0.1:0\nstate_dir: state\npolicy: allow_all\nservers:\n  bench:\n    url: " + strconv.Quote(direct) + "\n    era: " + era + "\n"
	if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
		return "", nil, err
	}
	load := func() (*config.File, error) { return loadConfig(path) }
	file, err := load()
	if err != nil {
		return "", nil, err
	}
	n, err := startNode(ctx, nodeConfig{File: file, Path: path, Reload: load, HTTP: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		_ = n.run(ctx)
		close(ended)
	}()
	return n.endpoint, func() {
		cancel()
		<-ended
		n.close()
	}, nil
}

// floor has the ways that do less than any hub can.
type floor struct {
	legs []leg
	stop func()
}

// startFloor serves the floor, which answers itself as the server did the first
// time, and the relay, which asks the server.
func startFloor(ctx context.Context, dir string, direct leg, answer []byte) (*floor, error) {
	server, err := embedded.Start(ctx, embedded.Config{StateDir: dir + "/floor", NoListener: true})
	if err != nil {
		return nil, err
	}
	option, err := nats.NkeyOptionFromSeed(server.NKeyFile())
	if err != nil {
		server.Shutdown()
		return nil, err
	}
	nc, err := nats.Connect("", nats.InProcessServer(server.InProcess()), option)
	if err != nil {
		server.Shutdown()
		return nil, err
	}
	answer = slices.Clone(answer)
	relayed := newLoad(256)
	ended := func(err error) (*floor, error) {
		nc.Close()
		server.Shutdown()
		return nil, err
	}
	if _, err = nc.Subscribe("floor", func(m *nats.Msg) { _ = m.Respond(answer) }); err != nil {
		return ended(err)
	}
	if _, err = nc.Subscribe("relay", func(m *nats.Msg) {
		go func() { // a responder that has to wait serves many at once
			var c caller
			if err := c.call(ctx, relayed.client, &direct, m.Data); err != nil {
				c.body.Reset()
				c.body.WriteString(err.Error())
			}
			_ = m.Respond(c.body.Bytes())
		}()
	}); err != nil {
		return ended(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return ended(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			var m *nats.Msg
			if m, err = nc.RequestWithContext(r.Context(), r.URL.Path[1:], body); err == nil {
				w.Header().Set("Content-Type", "application/json")
				_, err = w.Write(m.Data)
			}
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	}), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan struct{})
	go func() {
		_ = srv.Serve(ln)
		close(served)
	}()
	f := &floor{stop: func() {
		srv.Close()
		<-served
		relayed.close()
		nc.Close()
		server.Shutdown()
	}}
	for _, way := range []string{"floor", "relay"} {
		l := direct
		l.name, l.url = way, "http://"+ln.Addr().String()+"/"+way
		f.legs = append(f.legs, l)
	}
	return f, nil
}

// add appends the rows of one number of callers. rounds has one sample per leg
// and round; legs[0] is direct.
func (r *benchReport) add(callers int, legs []leg, rounds [][]sample) {
	micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	for i := range legs {
		row := benchRow{Callers: callers, Way: legs[i].name}
		median := func(of func(s, direct *sample) float64) float64 {
			values := make([]float64, 0, len(rounds))
			for _, samples := range rounds {
				values = append(values, of(&samples[i], &samples[0]))
			}
			return medianOf(values)
		}
		for _, samples := range rounds {
			s := &samples[i]
			row.Calls += len(s.latencies)
			row.Failures += s.failures
			if s.failure != nil {
				row.Failure = s.failure.Error()
			}
		}
		row.PerSecond = median(func(s, _ *sample) float64 { return s.rate() })
		row.P50US = median(func(s, _ *sample) float64 { return micros(s.percentile(50)) })
		row.P99US = median(func(s, _ *sample) float64 { return micros(s.percentile(99)) })
		row.AllocsPerCall = median(func(s, _ *sample) float64 { return float64(s.mallocs) / float64(len(s.latencies)) })
		row.BytesPerCall = median(func(s, _ *sample) float64 { return float64(s.bytes) / float64(len(s.latencies)) })
		row.Throughput = median(func(s, direct *sample) float64 { return s.rate() / direct.rate() })
		row.P50 = median(func(s, direct *sample) float64 { return micros(s.percentile(50)) / micros(direct.percentile(50)) })
		r.Rows = append(r.Rows, row)
	}
}

// medianOf sorts values and returns the middle one, of two the mean.
func medianOf(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

func (r *benchReport) print(c *console) error {
	what := r.Method + " " + r.Tool
	if r.Tools > 0 {
		what = fmt.Sprintf("%s of %d tools", r.Method, r.Tools)
	}
	fmt.Fprintf(c.out, "%s, %s, answer of %d bytes, %d CPUs, %s\n\n", safe(what), r.Era, r.Bytes, r.CPUs, r.Go)
	rows := [][]string{{"CALLERS", "WAY", "CALLS/S", "OF DIRECT", "P50", "OF DIRECT", "P99", "ALLOCS", "BYTES", "FAILURES"}}
	for _, row := range r.Rows {
		rows = append(rows, []string{
			strconv.Itoa(row.Callers), row.Way,
			fmt.Sprintf("%.0f", row.PerSecond), fmt.Sprintf("%.2f", row.Throughput),
			fmt.Sprintf("%.0f µs", row.P50US), fmt.Sprintf("%.2f", row.P50), fmt.Sprintf("%.0f µs", row.P99US),
			fmt.Sprintf("%.0f", row.AllocsPerCall), fmt.Sprintf("%.0f", row.BytesPerCall), strconv.Itoa(row.Failures),
		})
	}
	if err := c.table(rows); err != nil {
		return err
	}
	for _, row := range r.Rows {
		if row.Failure != "" {
			fmt.Fprintf(c.out, "a failure of %d callers: %s\n", row.Callers, oneLine(row.Failure))
		}
	}
	_, err := fmt.Fprint(c.out, "\nEach is the median of the rounds; OF DIRECT compares with direct in the same round. Allocations are per call, of\n"+
		"this process: the client alone, with hub also the hub if it runs in it.\n")
	return err
}
