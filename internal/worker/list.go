package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// maxPages bounds the pages of one list: more than any server needs, few enough
// that a server which makes up cursors for ever is found out.
const maxPages = 1000

// listing is all pages of a server's tools/list.
type listing struct {
	tools []jsontext.Value
	// ttl is the least ttlMs of the pages, 0 if there is none.
	ttl time.Duration
	// latency is how long the first page took, 0 if none was asked for.
	latency time.Duration
}

// listTools reads the whole list. Page by page it is bounded by timeout, and in
// all by maxTools. The error says what was wrong with the list.
func listTools(ctx context.Context, server string, conn mcp.Conn, timeout time.Duration, maxTools int) (*listing, error) {
	out := &listing{}
	if !conn.Info().Has("tools") {
		return out, nil
	}
	seen := map[string]bool{}
	params := jsontext.Value("{}")
	for page := 1; ; page++ {
		asked := time.Now()
		result, err := conn.Call(ctx, &mcp.Call{Method: mcp.MethodToolsList, Params: params, Timeout: timeout})
		if err != nil {
			return nil, fmt.Errorf("couldn't list tools: %w", err)
		}
		if page == 1 {
			out.latency = time.Since(asked)
		}
		cursor, more, err := out.add(result, maxTools)
		if limit, ok := errors.AsType[*tooManyTools](err); ok {
			limit.server = server
			return nil, limit
		}
		if err != nil {
			return nil, fmt.Errorf("couldn't list tools: page %d: %w", page, err)
		}
		if !more {
			return out, nil
		}
		// Before another page is asked for: "" is a cursor like any other.
		if seen[cursor] {
			return nil, fmt.Errorf("couldn't list tools: page %d repeats the cursor %.40q, so the list has no end", page, cursor)
		}
		seen[cursor] = true
		if page == maxPages {
			return nil, fmt.Errorf("couldn't list tools: the list has more than %d pages", maxPages)
		}
		if params, err = mcp.Edit(nil, mcp.Change{Name: "cursor", Value: mcp.QuoteString(cursor)}); err != nil {
			return nil, err
		}
	}
}

// add takes one page; more says that cursor leads to another one.
func (l *listing) add(result jsontext.Value, maxTools int) (cursor string, more bool, err error) {
	tools := jsontext.Value(nil)
	err = mcp.EachField(result, func(name string, v jsontext.Value) error {
		switch name {
		case "tools":
			tools = v
		case "nextCursor":
			switch v.Kind() {
			case '"':
				cursor, more = mcp.FieldString(result, "nextCursor"), true
			case 'n': // as good as absent, and often seen
			default:
				return fmt.Errorf("nextCursor must be a string, this is %.40s", v)
			}
		case "ttlMs":
			if ms, err := strconv.ParseInt(string(v), 10, 64); err == nil && ms > 0 && ms < int64(maxTTL/time.Millisecond) {
				if ttl := time.Duration(ms) * time.Millisecond; l.ttl == 0 || ttl < l.ttl {
					l.ttl = ttl
				}
			}
		}
		return nil
	})
	if err != nil {
		return "", false, err
	}
	if tools.Kind() != '[' {
		return "", false, fmt.Errorf("the result has no array of tools")
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(tools), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if _, err := dec.ReadToken(); err != nil {
		return "", false, err
	}
	for dec.PeekKind() != ']' {
		v, err := dec.ReadValue()
		if err != nil {
			return "", false, err
		}
		if len(l.tools) == maxTools {
			return "", false, &tooManyTools{limit: maxTools}
		}
		end := dec.InputOffset()
		l.tools = append(l.tools, tools[end-int64(len(v)):end:end])
	}
	return cursor, more, nil
}

// maxTTL bounds a ttlMs that is taken seriously; what is longer is for ever.
const maxTTL = 30 * 24 * time.Hour

// tooManyTools says that a limit keeps a server's tools out of the hub (L9).
type tooManyTools struct {
	server string
	limit  int
	before int // tools of the servers ahead in the listing order
	tools  int // of this server, 0 if more than can be told
}

func (e *tooManyTools) Error() string {
	if e.tools == 0 {
		return fmt.Sprintf("server %q is refused: it lists more than the %d tools that the hub takes (max_catalog_items)", e.server, e.limit)
	}
	return fmt.Sprintf("server %q is refused: it lists %d tools, the servers before it have %d, and the hub takes %d (max_catalog_items)", e.server, e.tools, e.before, e.limit)
}
