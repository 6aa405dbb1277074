package mcp

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// keepListening holds a modern server's subscriptions/listen open. listen runs
// one such stream until it ends and says how it went.
func (h *hop) keepListening(info *ServerInfo, listen func(params jsontext.Value, opened func()) (time.Duration, error)) {
	kinds := info.listChanged()
	if len(kinds) == 0 || h.opts.OnListChanged == nil {
		return
	}
	params := []byte(`{"notifications":{`)
	for i, kind := range kinds {
		if i > 0 {
			params = append(params, ',')
		}
		params = append(params, `"`+string(kind)+`ListChanged":true`...)
	}
	params = append(params, `}}`...)
	h.spawn(func() {
		h.reopen(func(again bool) (time.Duration, error) {
			return listen(params, func() {
				if again {
					h.changed(kinds...)
				}
			})
		})
	})
}

// errNoStream is the answer of a server that has no stream of that kind, which
// is final.
var errNoStream = errors.New("the server has no such stream")

// reopen runs stream again and again until the connection closes or the server
// has none. Stream returns the delay that the server asked for, if any. A stream
// that lasted starts the back-off anew.
func (h *hop) reopen(stream func(again bool) (retry time.Duration, err error)) {
	const first, most, lasting = time.Second, time.Minute, time.Minute
	delay := first
	for again := false; h.ctx.Err() == nil; again = true {
		began := time.Now()
		retry, err := stream(again)
		if errors.Is(err, errNoStream) || h.ctx.Err() != nil {
			return
		}
		if time.Since(began) >= lasting {
			delay = first
		}
		// Many connections may have lost the same server at once: spread them.
		wait := max(min(retry, most), delay/2+rand.N(delay))
		delay = min(2*delay, most)
		h.log.Debug("stream of changes ended, it will be opened again", "error", err, "delay", wait)
		select {
		case <-h.ctx.Done():
		case <-time.After(wait):
		}
	}
}

// maybeNoStream is errNoStream if the server's answer to a listen request means
// that it knows no such thing.
func maybeNoStream(err error) error {
	if e, ok := errors.AsType[*Error](err); ok && (e.Code == CodeMethodNotFound || e.Code == CodeInvalidParams) {
		return errNoStream
	}
	return err
}
