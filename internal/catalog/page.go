package catalog

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"sync/atomic"

	"toolhub/internal/mcp"
)

// Page is one page of the list of a kind: the JSON array of definitions, and the cursor
// of the next page, "" on the last one. The array must not be changed; it is
// rendered once and then shared. A size of 0 or less is everything.
//
// A cursor holds all that is needed to go on, so it works on any router. One
// of another ToolSet goes on behind the entry it stopped at, or where that
// was. An absent cursor and "", which is never given out, start at the
// beginning. The error of any other string, and of a cursor of another kind, is a
// -32602 [*mcp.Error].
func (s *ToolSet) Page(kind Kind, cursor string, hasCursor bool, size int) (defs []byte, next string, err error) {
	l := s.list(kind)
	return l.page(&l.modern, false, cursor, hasCursor, size)
}

// LegacyPage is Page for callers of the initialize era, see [Tool.AppendLegacyDef].
func (s *ToolSet) LegacyPage(kind Kind, cursor string, hasCursor bool, size int) (defs []byte, next string, err error) {
	l := s.list(kind)
	if !l.differs {
		return s.Page(kind, cursor, hasCursor, size)
	}
	return l.page(&l.legacy, true, cursor, hasCursor, size)
}

// pages are the pages of one size that were asked for so far. Two callers may
// render the same page at the same time; either result is right.
type pages struct {
	shelf atomic.Pointer[shelf]
}

type shelf struct {
	size  int
	pages []atomic.Pointer[page]
}

type page struct {
	json []byte
	next string
}

// slot is where the page that starts at entry start belongs, nil if it is not
// kept: pages of another size than the first one asked for, and those that
// start elsewhere because a cursor came from another list.
func (p *pages) slot(total, start, size int) *atomic.Pointer[page] {
	s := p.shelf.Load()
	if s == nil {
		fresh := &shelf{size: size, pages: make([]atomic.Pointer[page], total/size+1)}
		p.shelf.CompareAndSwap(nil, fresh)
		s = p.shelf.Load()
	}
	if s.size != size || start%size != 0 {
		return nil
	}
	return &s.pages[start/size]
}

func (l *list) page(kept *pages, legacy bool, cursor string, hasCursor bool, size int) ([]byte, string, error) {
	start := 0
	if hasCursor && cursor != "" {
		c, ok := parseCursor(cursor)
		if ok = ok && c.kind == l.kind; ok {
			start, ok = l.position(c)
		}
		if !ok {
			return nil, "", mcp.InvalidParams("params.cursor is not one that this hub gave out; list again without a cursor")
		}
	}
	total := len(l.entries)
	if size <= 0 || size > total {
		size = max(total, 1)
	}
	slot := kept.slot(total, start, size)
	if slot != nil {
		if p := slot.Load(); p != nil {
			return p.json, p.next, nil
		}
	}
	p := l.render(legacy, start, min(start+size, total))
	if slot != nil {
		slot.Store(p)
	}
	return p.json, p.next, nil
}

func (l *list) render(legacy bool, from, to int) *page {
	n := 2
	for i := from; i < to; i++ {
		e := &l.entries[i]
		_, _, own := e.own()
		n += own + len(e.Exposed) + 1 // the server's own name leaves room for the quotes
	}
	p := &page{json: append(make([]byte, 0, n), '[')}
	for i := from; i < to; i++ {
		e := &l.entries[i]
		if i > from {
			p.json = append(p.json, ',')
		}
		p.json = e.appendDef(p.json, legacy)
	}
	p.json = append(p.json, ']')
	if to < len(l.entries) {
		p.next = l.cursorBehind(to - 1)
	}
	return p
}

// position is the entry at which a list goes on. It is exact in the ToolSet that
// the cursor is of. In another it is behind the tool that the cursor stopped at;
// if that is gone, at the same place within its server; if that is gone too,
// at the place where its entries were.
func (l *list) position(c cursor) (int, bool) {
	if id, err := hex.DecodeString(l.id); err == nil && bytes.HasPrefix(id, c.id[:]) {
		return c.offset, c.offset <= len(l.entries)
	}
	if i, ok := l.byName[c.exposed]; ok && l.entries[i].Server == c.server {
		return i + 1, true
	}
	for _, sp := range l.servers {
		if sp.server == c.server {
			return min(sp.from+c.within-1, sp.to), true
		}
	}
	return min(c.offset-c.within, len(l.entries)), true
}

// cursor is where a page ended.
type cursor struct {
	// id is the beginning of the ToolSet's.
	id [8]byte
	// offset is the number of entries up to there, within that of the same server.
	offset, within int
	server         string
	// exposed is the name of the last entry of the page.
	exposed string
	kind    Kind
}

const (
	cursorVersion  = 2
	cursorChecksum = 4
	cursorMost     = 512
	// maxCursorKey bounds the part of a name or URI that is in a cursor.
	maxCursorKey = 160
)

func (l *list) cursorBehind(last int) string {
	e := &l.entries[last]
	c := cursor{kind: l.kind, offset: last + 1, server: e.Server, exposed: mcp.Shorten(e.Exposed, maxCursorKey)}
	if id, err := hex.DecodeString(l.id); err == nil {
		copy(c.id[:], id)
	}
	at, _ := slices.BinarySearchFunc(l.servers, last+1, func(sp span, last int) int { return cmp.Compare(sp.to, last) })
	c.within = last + 1 - l.servers[at].from
	return c.String()
}

// String is the cursor as callers get it. The checksum keeps mangled ones from
// being taken for others; nothing secret or trusted is in a cursor.
func (c *cursor) String() string {
	b := append(make([]byte, 0, 96), cursorVersion)
	b = append(b, byte(c.kind.place()))
	b = append(b, c.id[:]...)
	b = binary.AppendUvarint(b, uint64(c.offset))
	b = binary.AppendUvarint(b, uint64(c.within))
	b = binary.AppendUvarint(b, uint64(len(c.server)))
	b = append(b, c.server...)
	b = append(b, c.exposed...)
	sum := sha256.Sum256(b)
	return base64.RawURLEncoding.EncodeToString(append(b, sum[:cursorChecksum]...))
}

func parseCursor(s string) (cursor, bool) {
	var c cursor
	if len(s) > cursorMost {
		return c, false
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) < 2+len(c.id)+cursorChecksum || b[0] != cursorVersion {
		return c, false
	}
	b, got := b[:len(b)-cursorChecksum], b[len(b)-cursorChecksum:]
	if sum := sha256.Sum256(b); !bytes.Equal(sum[:cursorChecksum], got) {
		return c, false
	}
	if b[1] >= kinds {
		return c, false
	}
	c.kind, b = Kinds()[b[1]], b[2:]
	b = b[copy(c.id[:], b):]
	const most = 1 << 30
	var numbers [3]uint64
	for i := range numbers {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > most {
			return c, false
		}
		numbers[i], b = n, b[size:]
	}
	c.offset, c.within = int(numbers[0]), int(numbers[1])
	if numbers[2] > uint64(len(b)) || c.within < 1 || c.offset < c.within {
		return c, false
	}
	c.server, c.exposed = string(b[:numbers[2]]), string(b[numbers[2]:])
	// There is one way to write a cursor; decoders overlook line breaks and more.
	return c, c.String() == s
}
