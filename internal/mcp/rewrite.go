package mcp

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// Rewrite says how a caller is to see some texts in what a server answers; a nil
// function leaves its texts as they are.
type Rewrite struct {
	// URI is for the URIs of resources that stand where MCP has them, and not in
	// text: in links and embedded resources of tools and prompts, in what is read,
	// in the data of an error, and in _meta of MCP Apps (server/resources,
	// server/tools, server/prompts, schema).
	URI func(uri string) string
	// Message is for the messages of elicitations in a result that asks for input
	// (basic/patterns/mrtr).
	Message func(message string) string
}

// Response is the response to a request of method as its caller is to see it. All
// bytes but those of the texts stay as they are. A response with nothing to change
// is returned itself; most are not even looked into, since searching is far cheaper
// than reading. The error is an [*Error] for what is no JSON.
func (r Rewrite) Response(body []byte, method string) ([]byte, error) {
	uris := r.URI != nil && mayHave(body, uriWord)
	messages := r.Message != nil && mayHave(body, questionWord)
	if !uris && !messages {
		return body, nil
	}
	w := rewriter{body: body}
	if uris {
		w.uri = r.URI
	}
	if messages {
		w.message = r.Message
	}
	_, err := scanObject(body, skipSpace(body, 0), func(m member) error {
		switch m.name {
		case "result":
			return w.visit(placesOf(method), m.value)
		case "error":
			return w.visit(&errorPlaces, m.value)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return w.finish(), nil
}

var (
	uriWord      = []byte(`ri"`) // of "uri" and of "resourceUri"
	questionWord = []byte(`inputRequests"`)
)

// mayHave reports whether there may be a name that ends like word. A name could be
// spelt with escapes; letters hardly ever are, so that whoever does it is looked at.
func mayHave(body, word []byte) bool {
	if bytes.Contains(body, word) {
		return true
	}
	for rest := body; ; {
		i := bytes.Index(rest, escape)
		if i < 0 || i+len(escape) >= len(rest) {
			return false
		}
		rest = rest[i+len(escape):]
		if '4' <= rest[0] && rest[0] <= '7' { // A to z
			return true
		}
	}
}

var escape = []byte(`\u00`)

// place says which texts a value has: itself, or by its members. What holds of an
// object holds of each object in a list, too.
type place struct {
	what    text
	members map[string]*place
	// every is for all members that are not in members.
	every *place
	// by is the member, if any, whose value says what else the object has.
	by   string
	when map[string]*place
}

// text is a kind of text.
type text int

const (
	noText text = iota
	uriText
	messageText
)

var (
	aURI     = place{what: uriText}
	contents = place{members: map[string]*place{"uri": &aURI}}
	// content is one content block, or several.
	content = place{by: "type", when: map[string]*place{
		"resource_link": {members: map[string]*place{"uri": &aURI}},
		"resource":      {members: map[string]*place{"resource": &contents}},
	}}
	appMeta = place{members: map[string]*place{
		"ui":             {members: map[string]*place{"resourceUri": &aURI}},
		"ui/resourceUri": &aURI,
	}}
	errorPlaces = place{members: map[string]*place{"data": &contents}}
	questions   = place{every: &place{by: "method", when: map[string]*place{
		MethodElicit: {members: map[string]*place{"params": {members: map[string]*place{"message": {what: messageText}}}}},
	}}}
	toolResult = place{members: map[string]*place{"content": &content, "_meta": &appMeta, "inputRequests": &questions}}
	// resultPlaces are those of results, by method; "" is any other.
	resultPlaces = map[string]*place{
		MethodToolsCall:     &toolResult,
		MethodTasksGet:      {members: map[string]*place{"result": &toolResult, "error": &errorPlaces, "inputRequests": &questions}},
		MethodPromptsGet:    {members: map[string]*place{"messages": {members: map[string]*place{"content": &content}}, "inputRequests": &questions}},
		MethodResourcesRead: {members: map[string]*place{"contents": &contents, "inputRequests": &questions}},
		"":                  {members: map[string]*place{"inputRequests": &questions}},
	}
)

func placesOf(method string) *place {
	if p := resultPlaces[method]; p != nil {
		return p
	}
	return resultPlaces[""]
}

// rewriter finds the texts in a body and replaces them.
type rewriter struct {
	body    []byte
	uri     func(string) string
	message func(string) string
	edits   []edit // in order
}

// edit is a value that is replaced.
type edit struct {
	start, end int
	value      jsontext.Value
}

// visit takes the value that begins at i.
func (w *rewriter) visit(p *place, i int) error {
	if p == nil {
		return nil
	}
	switch w.body[i] {
	case '"':
		w.replace(p.what, i)
	case '[':
		if p.what != noText {
			return nil
		}
		return scanArray(w.body, i, func(value, _ int) error {
			if w.body[value] != '{' {
				return nil
			}
			return w.object(p, value)
		})
	case '{':
		return w.object(p, i)
	}
	return nil
}

func (w *rewriter) object(p *place, i int) error {
	if p.by != "" {
		var of *place
		_, err := scanObject(w.body, i, func(m member) error {
			if m.name == p.by && of == nil {
				of = p.when[Text(w.body[m.value:m.end])]
			}
			return nil
		})
		if err != nil || of == nil {
			return err
		}
		p = of
	}
	_, err := scanObject(w.body, i, func(m member) error {
		next := p.members[m.name]
		if next == nil {
			next = p.every
		}
		return w.visit(next, m.value)
	})
	return err
}

// replace notes how the string that begins at i is to be.
func (w *rewriter) replace(what text, i int) {
	change := w.uri
	if what == messageText {
		change = w.message
	}
	if what == noText || change == nil {
		return
	}
	end := skipString(w.body, i)
	was := Text(w.body[i:end])
	if is := change(was); is != was {
		w.edits = append(w.edits, edit{i, end, QuoteString(is)})
	}
}

// finish is the body with the edits made.
func (w *rewriter) finish() []byte {
	if len(w.edits) == 0 {
		return w.body
	}
	size := len(w.body)
	for _, e := range w.edits {
		size += len(e.value) - (e.end - e.start)
	}
	out := make([]byte, 0, size)
	at := 0
	for _, e := range w.edits {
		out = append(out, w.body[at:e.start]...)
		out = append(out, e.value...)
		at = e.end
	}
	return append(out, w.body[at:]...)
}
