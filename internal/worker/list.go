package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
)

// maxPages bounds the pages of one list: more than any server needs, few enough
// that a server which makes up cursors for ever is found out.
const maxPages = 1000

// kindSet is a set of kinds, by their places in [catalog.Kinds].
type kindSet uint8

const allKinds kindSet = 1<<4 - 1

// kindsOf are the kinds that a server means by one of its lists.
func kindsOf(list mcp.ListKind) kindSet {
	var set kindSet
	for i, kind := range catalog.Kinds() {
		if kind.Listing().Capability == string(list) {
			set |= 1 << i
		}
	}
	return set
}

// listing is what a connection lists. It is immutable.
type listing struct {
	defs [4][]jsontext.Value // by the places in catalog.Kinds
	// hints are what the server says about keeping the lists. One of a list
	// without is that it says nothing.
	hints [4]*catalog.Hint
}

// ttl is the least time that one of the lists may be kept, 0 if none says.
func (l *listing) ttl() time.Duration {
	var least time.Duration
	for _, h := range l.hints {
		if h == nil || h.TTLMS <= 0 {
			continue
		}
		if ttl := time.Duration(h.TTLMS) * time.Millisecond; least == 0 || ttl < least {
			least = ttl
		}
	}
	return least
}

// reader reads the lists of one connection.
type reader struct {
	server  string
	conn    mcp.Conn
	timeout time.Duration // of one page
	// limit bounds the definitions in all (L9).
	limit int
	// latency is how long the first page took, 0 if none was asked for.
	latency time.Duration
}

// read reads the lists in which whole; the others are those of before, which
// may be nil if all are read. The error says what was wrong with which list.
func (r *reader) read(ctx context.Context, which kindSet, before *listing) (*listing, error) {
	out := &listing{}
	count := 0
	for i := range out.defs {
		if which&(1<<i) == 0 && before != nil {
			out.defs[i], out.hints[i] = before.defs[i], before.hints[i]
			count += len(out.defs[i])
		}
	}
	for i, kind := range catalog.Kinds() {
		list := kind.Listing()
		if which&(1<<i) == 0 && before != nil || !r.conn.Info().Has(list.Capability) {
			continue
		}
		p := paging{member: list.Member, room: r.limit - count}
		err := r.pages(ctx, list.Method, &p)
		var rpc *mcp.Error
		switch {
		case kind == catalog.KindTemplate && errors.As(err, &rpc) && rpc.Code == mcp.CodeMethodNotFound:
			continue // a server may have resources and know nothing of templates
		case errors.Is(err, errFull):
			return nil, &tooMany{server: r.server, limit: r.limit}
		case err != nil:
			return nil, fmt.Errorf("couldn't read the list of %s: %w", list.Member, err)
		}
		out.defs[i], out.hints[i] = p.defs, p.hint
		count += len(p.defs)
	}
	return out, nil
}

// pages reads all pages of one list into p.
func (r *reader) pages(ctx context.Context, method string, p *paging) error {
	seen := map[string]bool{}
	params := jsontext.Value("{}")
	for page := 1; ; page++ {
		asked := time.Now()
		result, err := r.conn.Call(ctx, &mcp.Call{Method: method, Params: params, Timeout: r.timeout})
		if err != nil {
			return err
		}
		if r.latency == 0 {
			r.latency = time.Since(asked)
		}
		cursor, more, err := p.add(result)
		if err != nil {
			return fmt.Errorf("page %d: %w", page, err)
		}
		if !more {
			return nil
		}
		// Before another page is asked for: "" is a cursor like any other.
		if seen[cursor] {
			return fmt.Errorf("page %d repeats the cursor %.40q, so the list has no end", page, cursor)
		}
		seen[cursor] = true
		if page == maxPages {
			return fmt.Errorf("the list has more than %d pages", maxPages)
		}
		if params, err = mcp.Edit(nil, mcp.Change{Name: "cursor", Value: mcp.QuoteString(cursor)}); err != nil {
			return err
		}
	}
}

// paging is the pages of one list, put together.
type paging struct {
	member string
	room   int // for so many definitions
	defs   []jsontext.Value
	hint   *catalog.Hint
	some   bool // there was one
}

// errFull says that a list has more than there is room for.
var errFull = errors.New("there are too many")

// add takes one page; more says that cursor leads to another one.
func (p *paging) add(result jsontext.Value) (cursor string, more bool, err error) {
	defs, hint := jsontext.Value(nil), catalog.Hint{}
	hinted := false
	err = mcp.EachField(result, func(name string, v jsontext.Value) error {
		switch name {
		case p.member:
			defs = v
		case "nextCursor":
			switch v.Kind() {
			case '"':
				cursor, more = mcp.Text(v), true
			case 'n': // as good as absent, and often seen
			default:
				return fmt.Errorf("nextCursor must be a string, this is %.40s", v)
			}
		case "ttlMs":
			if ms, err := strconv.ParseInt(string(v), 10, 64); err == nil && ms >= 0 {
				hint.TTLMS, hinted = min(ms, maxTTL.Milliseconds()), true
			}
		case "cacheScope":
			hint.Public = mcp.Text(v) == "public"
		}
		return nil
	})
	if err != nil {
		return "", false, err
	}
	if defs.Kind() != '[' {
		return "", false, fmt.Errorf("the result has no array of %s", p.member)
	}
	switch {
	case !p.some && hinted:
		p.hint = &hint
	case hinted && p.hint != nil:
		p.hint.TTLMS, p.hint.Public = min(p.hint.TTLMS, hint.TTLMS), p.hint.Public && hint.Public
	default: // one page that says nothing speaks for all
		p.hint = nil
	}
	p.some = true
	dec := jsontext.NewDecoder(bytes.NewBuffer(defs), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if _, err := dec.ReadToken(); err != nil {
		return "", false, err
	}
	for dec.PeekKind() != ']' {
		v, err := dec.ReadValue()
		if err != nil {
			return "", false, err
		}
		if len(p.defs) >= p.room {
			return "", false, errFull
		}
		end := dec.InputOffset()
		p.defs = append(p.defs, defs[end-int64(len(v)):end:end])
	}
	return cursor, more, nil
}

// maxTTL bounds a ttlMs that is taken seriously; what is longer is for ever.
const maxTTL = 30 * 24 * time.Hour

// tooMany says that a limit keeps what a server lists out of the hub (L9).
type tooMany struct {
	server string
	limit  int
	before int // items of the servers ahead in the listing order
	items  int // of this server, 0 if more than can be told
}

func (e *tooMany) Error() string {
	if e.items == 0 {
		return fmt.Sprintf("server %q is refused: it lists more than the %d items that the hub takes (max_catalog_items)", e.server, e.limit)
	}
	return fmt.Sprintf("server %q is refused: it lists %d items, the servers before it have %d, and the hub takes %d (max_catalog_items)", e.server, e.items, e.before, e.limit)
}
