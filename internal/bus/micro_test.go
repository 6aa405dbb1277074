package bus

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"toolhub/internal/mcp"
)

// TestMicro asks as `nats micro` does, and reads the answers with the types of
// nats.go itself.
func TestMicro(t *testing.T) {
	t.Parallel()
	s, caller, worker := pair(t, inProcess)
	for _, bad := range [][2]string{{"a b", "1.0.0"}, {"toolhub-worker", "one"}, {"", "1.0.0"}} {
		if err := worker.Advertise(bad[0], bad[1], ""); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	if err := worker.Advertise("toolhub-worker", "1.2.3", "runs servers"); err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	unblock := sync.OnceFunc(func() { close(release) })
	t.Cleanup(unblock)
	started := make(chan struct{}, 1)
	service := serve(t, worker, 0, func(_ context.Context, in *Incoming) (Reply, error) {
		switch in.Meta.Principal {
		case "bad":
			return Reply{}, mcp.NewFault(mcp.KindDenied, "rule", "no")
		case "slow":
			started <- struct{}{}
			<-release
		}
		return Reply{Body: response("")}, nil
	})
	if _, err := worker.Serve(ServeAtSubject("test", "w1"), "", 0, func(context.Context, *Incoming) (Reply, error) {
		return Reply{}, errors.New("never called")
	}); err != nil {
		t.Fatal(err)
	}
	call := func(principal string) *Request {
		r := toEcho(request(1))
		r.Meta.Principal = principal
		return r
	}
	for range 3 {
		if _, err := caller.Call(t.Context(), call(""), nil); err != nil {
			t.Fatal(err)
		}
	}
	_, err := caller.Call(t.Context(), call("bad"), nil)
	wantFault(t, err, mcp.KindDenied, "rule")
	slow := async(t.Context(), caller, call("slow"), nil)
	within(t, "the slow call", started)

	nc := s.raw(t)
	ask := func(subject string, answer any) {
		t.Helper()
		msg, err := nc.Request(subject, nil, patience)
		if err != nil {
			t.Fatalf("%s: %v", subject, err)
		}
		if err := json.Unmarshal(msg.Data, answer); err != nil {
			t.Fatalf("%s: %v in %s", subject, err, msg.Data)
		}
	}
	var ping micro.Ping
	ask("$SRV.PING", &ping)
	if ping.Name != "toolhub-worker" || ping.Version != "1.2.3" || ping.ID == "" || ping.Type != micro.PingResponseType || ping.Metadata["identity"] != "w1" {
		t.Errorf("got %+v", ping)
	}
	var info micro.Info
	ask("$SRV.INFO.toolhub-worker", &info)
	if info.Type != micro.InfoResponseType || info.Description != "runs servers" || len(info.Endpoints) != 2 ||
		info.Endpoints[1].Name != "echo" || info.Endpoints[1].Subject != ServeSubject("test", "echo", testEpoch) || info.Endpoints[0].Name != "at_w1" {
		t.Errorf("got %+v", info)
	}
	stats := func() *micro.EndpointStats {
		t.Helper()
		var st micro.Stats
		ask("$SRV.STATS.toolhub-worker."+ping.ID, &st)
		if st.Type != micro.StatsResponseType || len(st.Endpoints) != 2 || st.Endpoints[1].Name != "echo" || time.Since(st.Started) > time.Minute {
			t.Fatalf("got %+v", st)
		}
		return st.Endpoints[1]
	}
	if e := stats(); e.NumRequests != 4 || e.NumErrors != 1 || e.LastError == "" {
		t.Errorf("got %+v", e)
	}
	if n := service.Running(); n != 1 {
		t.Errorf("%d calls run", n)
	}
	unblock()
	if o := within(t, "the slow call", slow); o.err != nil {
		t.Fatal(o.err)
	}
	// A call is counted before its answer is sent.
	if e := stats(); e.NumRequests != 5 || e.NumErrors != 1 || e.ProcessingTime <= 0 || e.AverageProcessingTime != e.ProcessingTime/5 {
		t.Errorf("got %+v", e)
	}
	service.Stop()
	ask("$SRV.INFO", &info)
	if len(info.Endpoints) != 1 {
		t.Errorf("a service that has stopped is still shown: %+v", info.Endpoints)
	}
	worker.Close()
	// Until the server has seen that the connection ended, what is sent there is lost.
	eventually(t, "nobody answers after Close", func() bool {
		_, err := nc.Request("$SRV.PING", nil, 200*time.Millisecond)
		if err == nil {
			t.Error("answered after Close")
		}
		return errors.Is(err, nats.ErrNoResponders)
	})
}
