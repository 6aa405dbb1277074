// Command board is an example MCP server over Streamable HTTP: a board of
// coloured notes that a browser shows while tools change it. It speaks both
// eras of MCP at one URL.
//
//	go run ./examples/servers/board -addr 127.0.0.1:7790
//
//	http://127.0.0.1:7790/      the board, for people
//	http://127.0.0.1:7790/mcp   MCP: add_note, list_notes, clear_board
//
// Two of its tools have the names of tools of the notes server, on purpose:
// behind the hub each is found under its own server's name.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"html/template"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("board: ")
	addr := flag.String("addr", "127.0.0.1:7790", "where to listen; loopback addresses only")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *addr); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	// It has no authentication, so nobody beyond this machine may reach it.
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("-addr %s is not a loopback address such as 127.0.0.1:7790", addr)
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	log.Printf("the board is at http://%s/", ln.Addr())
	srv := &http.Server{Handler: handler(&board{}), ReadHeaderTimeout: 10 * time.Second}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	srv.Close() // open streams would keep Shutdown waiting
	<-done
	return nil
}

func handler(b *board) http.Handler {
	server := newServer(b)
	get := func(*http.Request) *mcp.Server { return server }
	modern := mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true})
	legacy := mcp.NewStreamableHTTPHandler(get, nil)

	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", func(w http.ResponseWriter, r *http.Request) {
		// The SDK serves each era with a handler of its own. Versions are
		// dates; from 2026-07-28 on there are no sessions.
		if r.Method == http.MethodPost && r.Header.Get("Mcp-Protocol-Version") >= "2026-07-28" && r.Header.Get("Mcp-Session-Id") == "" {
			modern.ServeHTTP(w, r)
			return
		}
		legacy.ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		if err := page.Execute(w, b.all()); err != nil {
			log.Print(err)
		}
	})
	return mux
}

// board is the notes in the order in which they came; it forgets them when it ends.
type board struct {
	mu    sync.Mutex // guards notes
	notes []note
}

const maxNotes = 200

type note struct {
	Text   string `json:"text"`
	Colour string `json:"colour"`
}

func (b *board) all() []note {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]note{}, b.notes...)
}

func (b *board) add(n note) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.notes) >= maxNotes {
		return 0, fmt.Errorf("the board is full: it holds %d notes", maxNotes)
	}
	b.notes = append(b.notes, n)
	return len(b.notes), nil
}

func (b *board) clear() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.notes)
	b.notes = nil
	return n
}

type (
	none    struct{}
	addArgs struct {
		Text   string `json:"text" jsonschema:"what the note says, at most 200 characters"`
		Colour string `json:"colour,omitempty" jsonschema:"yellow (if left out), green, blue or pink"`
	}
	listResult struct {
		Notes []note `json:"notes"`
	}
)

var colours = []string{"yellow", "green", "blue", "pink"}

func newServer(b *board) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "board", Title: "Board of notes", Version: "1.0.0"},
		&mcp.ServerOptions{Instructions: "Shows coloured notes in a browser."})
	no := false
	mcp.AddTool(s, &mcp.Tool{
		Name: "add_note", Description: "Puts a coloured note on the board.",
		Annotations: &mcp.ToolAnnotations{DestructiveHint: &no, OpenWorldHint: &no},
	}, func(_ context.Context, _ *mcp.CallToolRequest, in addArgs) (*mcp.CallToolResult, any, error) {
		if in.Colour == "" {
			in.Colour = colours[0]
		}
		if !slices.Contains(colours, in.Colour) {
			return nil, nil, fmt.Errorf("colour %q: use one of %v", in.Colour, colours)
		}
		if n := len([]rune(in.Text)); n == 0 || n > 200 {
			return nil, nil, errors.New("text must have 1 to 200 characters")
		}
		n, err := b.add(note(in))
		if err != nil {
			return nil, nil, err
		}
		return text("the board has %d notes now", n), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{
		Name: "list_notes", Description: "Lists what is on the board.",
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: &no},
	}, func(context.Context, *mcp.CallToolRequest, none) (*mcp.CallToolResult, listResult, error) {
		return nil, listResult{b.all()}, nil
	})
	mcp.AddTool(s, &mcp.Tool{
		Name: "clear_board", Description: "Takes every note off the board.",
		Annotations: &mcp.ToolAnnotations{IdempotentHint: true, OpenWorldHint: &no},
	}, func(context.Context, *mcp.CallToolRequest, none) (*mcp.CallToolResult, any, error) {
		return text("took %d notes off", b.clear()), nil, nil
	})
	return s
}

func text(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
}

var page = template.Must(template.New("board").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Board</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta http-equiv="refresh" content="2">
<style>
 body { font: 1rem/1.4 system-ui, sans-serif; margin: 1rem; background: #f4f1ea; color: #222 }
 ul { list-style: none; padding: 0; display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(12rem, 1fr)) }
 li { padding: 1rem; min-height: 5rem; border-radius: .3rem; box-shadow: 0 2px 5px #0003; overflow-wrap: anywhere }
 .yellow { background: #fff3a3 } .green { background: #c9f2c7 } .blue { background: #cfe3ff } .pink { background: #ffd3e2 }
</style></head><body><h1>Board</h1>
{{if .}}<ul>{{range .}}<li class="{{.Colour}}">{{.Text}}</li>{{end}}</ul>{{else}}<p>Nothing on it yet.</p>{{end}}
</body></html>
`))
