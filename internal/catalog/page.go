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

// Page is one page of tools/list: the JSON array of definitions, and the cursor
// of the next page, "" on the last one. The array must not be changed; it is
// rendered once and then shared. A size of 0 or less is everything.
//
// A cursor holds all that is needed to go on, so it works on any router. One
// of another ToolSet goes on behind the tool it stopped at, or where that tool
// was. An absent cursor and "", which is never given out, start at the
// beginning. The error of any other string is a -32602 [*mcp.Error].
func (s *ToolSet) Page(cursor string, hasCursor bool, size int) (toolsJSON []byte, next string, err error) {
	return s.page(&s.modern, (*Tool).AppendDef, cursor, hasCursor, size)
}

// LegacyPage is Page for callers of the initialize era, see [Tool.AppendLegacyDef].
func (s *ToolSet) LegacyPage(cursor string, hasCursor bool, size int) (toolsJSON []byte, next string, err error) {
	if !s.differs {
		return s.Page(cursor, hasCursor, size)
	}
	return s.page(&s.legacy, (*Tool).AppendLegacyDef, cursor, hasCursor, size)
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

type appendDef = func(t *Tool, dst []byte, exposed string) []byte

func (s *ToolSet) page(kept *pages, def appendDef, cursor string, hasCursor bool, size int) ([]byte, string, error) {
	start := 0
	if hasCursor && cursor != "" {
		c, ok := parseCursor(cursor)
		if ok {
			start, ok = s.position(c)
		}
		if !ok {
			return nil, "", mcp.InvalidParams("params.cursor is not one that this hub gave out; list again without a cursor")
		}
	}
	total := len(s.Entries)
	if size <= 0 || size > total {
		size = max(total, 1)
	}
	slot := kept.slot(total, start, size)
	if slot != nil {
		if p := slot.Load(); p != nil {
			return p.json, p.next, nil
		}
	}
	p := s.render(def, start, min(start+size, total))
	if slot != nil {
		slot.Store(p)
	}
	return p.json, p.next, nil
}

func (s *ToolSet) render(def appendDef, from, to int) *page {
	n := 2
	for i := from; i < to; i++ {
		e := &s.Entries[i]
		n += len(e.Tool.Def) + len(e.Exposed) + 1 // the server's own name leaves room for the quotes
	}
	p := &page{json: append(make([]byte, 0, n), '[')}
	for i := from; i < to; i++ {
		e := &s.Entries[i]
		if i > from {
			p.json = append(p.json, ',')
		}
		p.json = def(e.Tool, p.json, e.Exposed)
	}
	p.json = append(p.json, ']')
	if to < len(s.Entries) {
		p.next = s.cursorBehind(to - 1)
	}
	return p
}

// position is the entry at which a list goes on. It is exact in the ToolSet that
// the cursor is of. In another it is behind the tool that the cursor stopped at;
// if that is gone, at the same place within its server; if that is gone too,
// at the place where its entries were.
func (s *ToolSet) position(c cursor) (int, bool) {
	if id, err := hex.DecodeString(s.ID); err == nil && bytes.HasPrefix(id, c.id[:]) {
		return c.offset, c.offset <= len(s.Entries)
	}
	if i, ok := s.byName[c.exposed]; ok && s.Entries[i].Server == c.server {
		return i + 1, true
	}
	for _, sp := range s.servers {
		if sp.server == c.server {
			return min(sp.from+c.within-1, sp.to), true
		}
	}
	return min(c.offset-c.within, len(s.Entries)), true
}

// cursor is where a page ended.
type cursor struct {
	// id is the beginning of the ToolSet's.
	id [8]byte
	// offset is the number of entries up to there, within that of the same server.
	offset, within int
	server         string
	// exposed is the name of the last tool of the page.
	exposed string
}

const (
	cursorVersion  = 1
	cursorChecksum = 4
	cursorMost     = 512
)

func (s *ToolSet) cursorBehind(last int) string {
	e := &s.Entries[last]
	c := cursor{offset: last + 1, server: e.Server, exposed: e.Exposed}
	if id, err := hex.DecodeString(s.ID); err == nil {
		copy(c.id[:], id)
	}
	at, _ := slices.BinarySearchFunc(s.servers, last+1, func(sp span, last int) int { return cmp.Compare(sp.to, last) })
	c.within = last + 1 - s.servers[at].from
	return c.String()
}

// String is the cursor as callers get it. The checksum keeps mangled ones from
// being taken for others; nothing secret or trusted is in a cursor.
func (c *cursor) String() string {
	b := append(make([]byte, 0, 96), cursorVersion)
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
	if err != nil || len(b) < 1+len(c.id)+cursorChecksum || b[0] != cursorVersion {
		return c, false
	}
	b, got := b[:len(b)-cursorChecksum], b[len(b)-cursorChecksum:]
	if sum := sha256.Sum256(b); !bytes.Equal(sum[:cursorChecksum], got) {
		return c, false
	}
	b = b[1:]
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
