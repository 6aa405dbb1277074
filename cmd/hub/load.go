package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// A leg is one way of making the same request: a POST that is the same each
// time but for the id, which is the caller's. All legs are measured by the same
// client.
type leg struct {
	name   string
	url    string
	header http.Header
	method string
	params jsontext.Value
}

// request is the body of the request of caller i. In a session no two requests
// under way may have the same id.
func (l *leg) request(i int) []byte {
	return mcp.AppendRequest(nil, mcp.IntID(uint64(i)+1), l.method, l.params)
}

// sample is what one leg did under one load.
type sample struct {
	// latencies are those of the requests that succeeded, in no order.
	latencies []time.Duration
	elapsed   time.Duration
	// mallocs and bytes are what the whole process allocated meanwhile.
	mallocs, bytes uint64
	failures       int
	failure        error // one of them
}

// percentile is the latency that p percent of the requests do not exceed.
func (s *sample) percentile(p int) time.Duration {
	if len(s.latencies) == 0 {
		return 0
	}
	slices.Sort(s.latencies)
	return s.latencies[min(len(s.latencies)*p/100, len(s.latencies)-1)]
}

// rate is the number of requests in a second.
func (s *sample) rate() float64 {
	if s.elapsed == 0 {
		return 0
	}
	return float64(len(s.latencies)) / s.elapsed.Seconds()
}

// load is a client that does as little as a client can: connections are kept,
// bodies are read into buffers that are kept too.
type load struct {
	client  *http.Client
	callers []caller
}

// caller is one of those that call at the same time, each waiting for its answer.
type caller struct {
	body      bytes.Buffer
	latencies []time.Duration
	failures  int
	failure   error
}

func newLoad(callers int) *load {
	return &load{
		client: &http.Client{Transport: &http.Transport{
			MaxIdleConnsPerHost: callers, DisableCompression: true, ForceAttemptHTTP2: false,
		}},
		callers: make([]caller, callers),
	}
}

// close gives the connections up.
func (l *load) close() { l.client.CloseIdleConnections() }

// run makes the request of leg from all callers for the time given.
func (l *load) run(ctx context.Context, leg *leg, d time.Duration) sample {
	for i := range l.callers {
		c := &l.callers[i]
		c.latencies, c.failures, c.failure = c.latencies[:0], 0, nil
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	var callers sync.WaitGroup
	for i := range l.callers {
		callers.Go(func() {
			request := leg.request(i)
			for { // once at the least, however late it comes to its turn
				l.callers[i].measure(ctx, l.client, leg, request)
				if ctx.Err() != nil || time.Since(start) >= d {
					return
				}
			}
		})
	}
	callers.Wait()
	s := sample{elapsed: time.Since(start)}
	runtime.ReadMemStats(&after)
	s.mallocs, s.bytes = after.Mallocs-before.Mallocs, after.TotalAlloc-before.TotalAlloc
	for i := range l.callers {
		c := &l.callers[i]
		s.latencies = append(s.latencies, c.latencies...)
		s.failures += c.failures
		if c.failure != nil {
			s.failure = c.failure
		}
	}
	return s
}

func (c *caller) measure(ctx context.Context, client *http.Client, leg *leg, request []byte) {
	start := time.Now()
	err := c.call(ctx, client, leg, request)
	switch {
	case err == nil:
		c.latencies = append(c.latencies, time.Since(start))
	case ctx.Err() == nil:
		c.failures++
		c.failure = fmt.Errorf("%s: %w", leg.name, err)
	}
}

// call makes the request once and checks the answer.
func (c *caller) call(ctx context.Context, client *http.Client, leg *leg, request []byte) error {
	res, err := c.do(ctx, client, leg.url, leg.header, request)
	if err != nil {
		return err
	}
	return answered(res.StatusCode, c.body.Bytes())
}

// do makes the request once and leaves the body of the answer in c.body.
func (c *caller) do(ctx context.Context, client *http.Client, url string, header http.Header, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = header
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	c.body.Reset()
	_, err = io.Copy(&c.body, res.Body)
	return res, err
}

// answered says whether an answer holds a result that is no error. It looks for
// bytes only: decoding would be most of the client's work.
func answered(status int, body []byte) error {
	if status != http.StatusOK {
		return fmt.Errorf("HTTP %d: %.200s", status, body)
	}
	if !bytes.Contains(body, []byte(`"result":`)) || bytes.Contains(body, []byte(`"isError":true`)) {
		return fmt.Errorf("no result: %.200s", body)
	}
	return nil
}

// compare measures legs in turn, so that whatever else the machine does meets
// all of them: rounds of d each, after one round that does not count. It returns
// one sample per round and leg.
func compare(ctx context.Context, legs []leg, callers, rounds int, d time.Duration) ([][]sample, error) {
	l := newLoad(callers)
	defer l.close()
	all := make([][]sample, 0, rounds)
	for round := range rounds + 1 {
		samples := make([]sample, len(legs))
		for i := range legs {
			n := (i + round) % len(legs) // nobody is always the first
			runtime.GC()                 // nobody pays for another's garbage
			samples[n] = l.run(ctx, &legs[n], d)
			if err := context.Cause(ctx); err != nil {
				return nil, err
			}
			if len(samples[n].latencies) == 0 {
				return nil, errors.Join(fmt.Errorf("no request of %s succeeded", legs[n].name), samples[n].failure)
			}
		}
		if round > 0 {
			all = append(all, samples)
		}
	}
	return all, nil
}
