// Command notes is an example MCP server: it keeps notes as text files in one
// folder and speaks MCP over stdio, in both eras.
//
//	go run ./examples/servers/notes -dir DIR
//
//	add_note      writes DIR/<title>.md
//	list_notes    the titles
//	read_note     the text of one
//	search_notes  the titles and lines that hold a word
//	review_notes  all notes, one after another, with progress
//	delete_note   removes DIR/<title>.md
//
// It is built on the official Go SDK, as a server of your own may be: the hub
// needs nothing of it but MCP.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("notes: ")
	dir := flag.String("dir", "", "the folder of the notes; made if it is not there")
	flag.Parse()
	if *dir == "" || flag.NArg() > 0 {
		log.Fatal("give the folder of the notes: -dir DIR")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *dir); err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// A Root refuses every path that leaves it, symbolic links included.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	log.Printf("keeping notes in %s", dir) // stderr: the hub shows its last lines
	return newServer(&folder{root}).Run(ctx, &mcp.StdioTransport{})
}

// folder is the notes on disk, one file each.
type folder struct{ root *os.Root }

var titleForm = regexp.MustCompile(`^[\pL\pN][\pL\pN _-]{0,59}$`)

func fileName(title string) (string, error) {
	if !titleForm.MatchString(title) {
		return "", fmt.Errorf("title %q: use 1 to 60 letters, digits, spaces, - and _", title)
	}
	return title + ".md", nil
}

func (f *folder) titles() ([]string, error) {
	entries, err := fs.ReadDir(f.root.FS(), ".")
	if err != nil {
		return nil, err
	}
	titles := []string{}
	for _, e := range entries {
		if title, ok := strings.CutSuffix(e.Name(), ".md"); ok && e.Type().IsRegular() {
			titles = append(titles, title)
		}
	}
	return titles, nil
}

func (f *folder) read(title string) (string, error) {
	name, err := fileName(title)
	if err != nil {
		return "", err
	}
	text, err := f.root.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("there is no note %q", title)
	}
	return string(text), err
}

// The arguments and results of the tools; their JSON Schemas are made from
// these types.
type (
	none struct{}

	noteArgs struct {
		Title string `json:"title" jsonschema:"the title of the note"`
	}
	addArgs struct {
		Title string `json:"title" jsonschema:"the title, which is also the name of its file"`
		Text  string `json:"text" jsonschema:"the text of the note"`
	}
	searchArgs struct {
		Word string `json:"word" jsonschema:"what to look for; case does not matter"`
	}
	reviewArgs struct {
		Pause float64 `json:"pause,omitempty" jsonschema:"seconds for each note, 0.5 if left out, at most 60"`
	}
	listResult struct {
		Titles []string `json:"titles"`
	}
	searchResult struct {
		Hits []hit `json:"hits"`
	}
	hit struct {
		Title string `json:"title"`
		Line  string `json:"line"`
	}
)

func newServer(f *folder) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "notes", Title: "Notes in a folder", Version: "1.0.0"},
		&mcp.ServerOptions{Instructions: "Keeps short notes as files."})
	no := false
	reads := &mcp.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: &no}
	adds := &mcp.ToolAnnotations{DestructiveHint: &no, IdempotentHint: true, OpenWorldHint: &no}
	deletes := &mcp.ToolAnnotations{IdempotentHint: true, OpenWorldHint: &no}

	mcp.AddTool(s, &mcp.Tool{Name: "add_note", Description: "Writes a note; one of the same title is replaced.", Annotations: adds},
		func(_ context.Context, _ *mcp.CallToolRequest, in addArgs) (*mcp.CallToolResult, any, error) {
			name, err := fileName(in.Title)
			if err != nil {
				return nil, nil, err
			}
			if err := f.root.WriteFile(name, []byte(in.Text), 0o644); err != nil {
				return nil, nil, err
			}
			return text("wrote %s (%d bytes)", name, len(in.Text)), nil, nil
		})
	mcp.AddTool(s, &mcp.Tool{Name: "list_notes", Description: "Lists the titles of all notes.", Annotations: reads},
		func(context.Context, *mcp.CallToolRequest, none) (*mcp.CallToolResult, listResult, error) {
			titles, err := f.titles()
			return nil, listResult{titles}, err
		})
	mcp.AddTool(s, &mcp.Tool{Name: "read_note", Description: "Returns the text of one note.", Annotations: reads},
		func(_ context.Context, _ *mcp.CallToolRequest, in noteArgs) (*mcp.CallToolResult, any, error) {
			body, err := f.read(in.Title)
			if err != nil {
				return nil, nil, err
			}
			return text("%s", body), nil, nil
		})
	mcp.AddTool(s, &mcp.Tool{Name: "search_notes", Description: "Finds the lines that hold a word.", Annotations: reads},
		func(_ context.Context, _ *mcp.CallToolRequest, in searchArgs) (*mcp.CallToolResult, searchResult, error) {
			hits, err := f.search(in.Word)
			return nil, searchResult{hits}, err
		})
	mcp.AddTool(s, &mcp.Tool{Name: "review_notes", Description: "Goes through all notes at reading speed, with progress.", Annotations: reads},
		func(ctx context.Context, req *mcp.CallToolRequest, in reviewArgs) (*mcp.CallToolResult, any, error) {
			all, err := f.review(ctx, req, in)
			if err != nil {
				return nil, nil, err
			}
			return text("%s", all), nil, nil
		})
	mcp.AddTool(s, &mcp.Tool{Name: "delete_note", Description: "Deletes a note for good.", Annotations: deletes},
		func(_ context.Context, _ *mcp.CallToolRequest, in noteArgs) (*mcp.CallToolResult, any, error) {
			name, err := fileName(in.Title)
			if err != nil {
				return nil, nil, err
			}
			if err := f.root.Remove(name); err != nil {
				return nil, nil, fmt.Errorf("there is no note %q", in.Title)
			}
			return text("deleted %s", name), nil, nil
		})
	return s
}

func text(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
}

func (f *folder) search(word string) ([]hit, error) {
	if word == "" {
		return nil, errors.New("word must not be empty")
	}
	titles, err := f.titles()
	if err != nil {
		return nil, err
	}
	hits := []hit{}
	for _, title := range titles {
		body, err := f.read(title)
		if err != nil {
			continue // deleted, or a file that is no note of ours
		}
		for line := range strings.Lines(body) {
			if strings.Contains(strings.ToLower(line), strings.ToLower(word)) {
				hits = append(hits, hit{title, strings.TrimSpace(line)})
			}
		}
	}
	return hits, nil
}

// review is slow on purpose: it shows progress, time limits and cancellation.
func (f *folder) review(ctx context.Context, req *mcp.CallToolRequest, in reviewArgs) (string, error) {
	if in.Pause < 0 || in.Pause > 60 {
		return "", errors.New("pause must be between 0 and 60 seconds")
	}
	if in.Pause == 0 {
		in.Pause = 0.5
	}
	titles, err := f.titles()
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for i, title := range titles {
		select {
		case <-time.After(time.Duration(in.Pause * float64(time.Second))):
		case <-ctx.Done():
			return "", ctx.Err()
		}
		body, err := f.read(title)
		if err != nil {
			continue
		}
		fmt.Fprintf(&all, "# %s\n%s\n\n", title, strings.TrimSpace(body))
		if token := req.Params.GetProgressToken(); token != nil {
			err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
				ProgressToken: token, Progress: float64(i + 1), Total: float64(len(titles)), Message: title,
			})
			if err != nil {
				return "", err
			}
		}
	}
	return all.String(), nil
}
