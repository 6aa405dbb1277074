package mcp

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
)

func TestServerPipeRead(t *testing.T) {
	t.Parallel()
	long := `{"jsonrpc":"2.0","id":"big","method":"m","params":{"x":"` + strings.Repeat("x", 5000) + `"}}`
	anonymous := `{"method":"m","params":{"x":"` + strings.Repeat(`\"id\":9,`, 1000) + `"}}`
	in := "\n{\"a\":1}\r\n \n" + long + "\n" + anonymous + "\n{\"b\":2}\n{\"c\":3}"
	p := NewServerPipe(strings.NewReader(in), io.Discard, func() int { return 1000 })
	var got []string
	for {
		line, err := p.Read()
		if e, ok := errors.AsType[*LongLine](err); ok {
			got = append(got, "long "+string(e.ID))
			continue
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			break
		}
		got = append(got, string(line))
	}
	if want := `{"a":1}|long "big"|long |{"b":2}|{"c":3}`; strings.Join(got, "|") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, "|"), want)
	}
}

// slowWriter takes one byte at a time, so that lines written at once would mix.
type slowWriter struct{ b bytes.Buffer }

func (w *slowWriter) Write(p []byte) (int, error) {
	for _, c := range p {
		w.b.WriteByte(c)
	}
	return len(p), nil
}

func TestServerPipeWrite(t *testing.T) {
	t.Parallel()
	var out slowWriter
	p := NewServerPipe(strings.NewReader(""), &out, nil)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if err := p.Write([]byte("{\n\"a\":\r\n1}")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if want := strings.Repeat("{ \"a\":  1}\n", 50); out.b.String() != want {
		t.Errorf("lines are mixed: %.100q", out.b.String())
	}
	_, broken := io.Pipe()
	_ = broken.CloseWithError(nil)
	p = NewServerPipe(strings.NewReader(""), broken, nil)
	for range 2 {
		if p.Write([]byte("{}")) == nil {
			t.Error("a broken pipe is no error")
		}
	}
}
