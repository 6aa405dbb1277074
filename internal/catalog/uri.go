package catalog

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// URIs says how the URIs of a server's resources are exposed (N9).
type URIs string

// The ways of exposing URIs.
const (
	// URIsProxy puts the owner in front: mcp-proxy://<id>/<original>, and
	// ui://mcp-proxy/<id>/<rest> for the scheme by which MCP Apps are known. "" means the same.
	URIsProxy URIs = "proxy"
	// URIsOriginal leaves them as they are.
	URIsOriginal URIs = "original"
)

// maxURI bounds what is taken for a server's own URI.
const maxURI = 8 << 10

// validateURI checks what every URI has (RFC 3986): a scheme, and no characters
// that would break a header or a log.
func validateURI(uri string) error {
	scheme, _, ok := strings.Cut(uri, ":")
	switch {
	case len(uri) > maxURI:
		return fmt.Errorf("the URI has %d bytes, at most %d are allowed", len(uri), maxURI)
	case !ok || !isScheme(scheme):
		return fmt.Errorf("the URI %+.80q has no scheme; it must be like scheme:rest", uri)
	case strings.IndexFunc(uri, func(r rune) bool { return r < ' ' || r == 0x7f }) >= 0:
		return fmt.Errorf("the URI %+.80q has a control character", uri)
	}
	return nil
}

func isScheme(s string) bool {
	for i, r := range s {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		if !letter && (i == 0 || !('0' <= r && r <= '9' || r == '+' || r == '.' || r == '-')) {
			return false
		}
	}
	return s != ""
}

// isWeb reports whether the URI is one that clients can fetch without the hub.
func isWeb(uri string) bool {
	scheme, _, _ := strings.Cut(uri, ":")
	return strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https")
}

const (
	proxyPrefix = "mcp-proxy://"
	uiScheme    = "ui://"
	uiPrefix    = uiScheme + "mcp-proxy/"
)

// exposeURI is the exposed form of a server's own URI or URI template.
func exposeURI(server, own string) string {
	if rest, ok := strings.CutPrefix(own, uiScheme); ok {
		return uiPrefix + server + "/" + rest
	}
	return proxyPrefix + server + "/" + own
}

// ownURI is the inverse of exposeURI: ok is false for what is no exposed form.
func ownURI(exposed string) (server, own string, ok bool) {
	scheme := ""
	rest, ok := strings.CutPrefix(exposed, proxyPrefix)
	if !ok {
		if rest, ok = strings.CutPrefix(exposed, uiPrefix); !ok {
			return "", "", false
		}
		scheme = uiScheme
	}
	server, own, ok = strings.Cut(rest, "/")
	own = scheme + own
	return server, own, ok && server != "" && own != ""
}

// URITarget is what an exposed URI means.
type URITarget struct {
	// Server is the owner, and URI what it calls the resource.
	Server, URI string
	// Listed says that the owner lists the resource.
	Listed bool
}

// resourceOwner is one server of a ToolSet as far as URIs go.
type resourceOwner struct {
	*Source

	original bool
}

// ownerIn is the server that an exposed URI names, nil if it names none whose URIs
// are exposed in that form.
func (s *ToolSet) ownerIn(exposed string) (o *resourceOwner, own string) {
	server, own, ok := ownURI(exposed)
	if !ok {
		return nil, ""
	}
	if o = s.owners[server]; o == nil || o.original {
		return nil, ""
	}
	return o, own
}

// ResolveURI finds the owner of a resource. What is not listed reaches its owner
// too, since a link or a template may lead to it; but not where two templates of
// the owners in question fit, since the hub does not guess (M6). The error is a
// -32602 [*mcp.Error] whose data has the URI.
func (s *ToolSet) ResolveURI(uri string) (URITarget, error) {
	if e, ok := s.lists[resourceList].resolve(uri); ok {
		return URITarget{Server: e.Server, URI: e.Item.Key, Listed: true}, nil
	}
	among, own := s.originals, uri
	// One that names a server which is not there any more is not for the others,
	// unless they say so themselves.
	_, _, foreign := ownURI(uri)
	if o, rest := s.ownerIn(uri); o != nil {
		among, own, foreign = []*resourceOwner{o}, rest, false
	}
	if err := validateURI(own); err != nil {
		return URITarget{}, noResource(uri, "there is no resource %+.200q: %v", uri, err)
	}
	var found *resourceOwner
	fits, left := 0, maxMatching
	for _, o := range among {
		if o.hidden(KindResource, own) {
			continue
		}
		n, all := o.Catalog.matching(own, &left)
		if !all {
			return URITarget{}, noResource(uri, "the resource %+.200q is ambiguous: too many templates might fit it", uri)
		}
		fits += len(n)
		if len(n) > 0 || len(among) == 1 && !foreign {
			found = o
		}
	}
	switch {
	case fits > 1:
		return URITarget{}, noResource(uri, "the resource %+.200q is ambiguous: %d templates fit it", uri, fits)
	case found == nil:
		return URITarget{}, noResource(uri, "there is no resource %+.200q", uri)
	}
	return URITarget{Server: found.Server, URI: own}, nil
}

func noResource(uri, format string, args ...any) error {
	e := mcp.InvalidParams(fmt.Sprintf(format, args...))
	e.Data = append(append([]byte(`{"uri":`), mcp.QuoteString(uri)...), '}')
	return e
}

// ResolveTemplate looks an exposed URI template up.
func (s *ToolSet) ResolveTemplate(uriTemplate string) (*Entry, bool) {
	return s.lists[templateList].resolve(uriTemplate)
}

// ExposeURI is the form in which callers see a URI that a server's result has. A
// URI of the web that is none of the server's resources means the web, and what
// is no URI means whatever it means to the server.
func (s *ToolSet) ExposeURI(server, uri string) string {
	o := s.owners[server]
	if o == nil || o.original || validateURI(uri) != nil || isWeb(uri) && !o.Catalog.has(uri) {
		return uri
	}
	return exposeURI(server, uri)
}

// has reports whether the URI in a result is one of the server's resources.
func (c *Catalog) has(uri string) bool {
	if _, listed := c.Resource(uri); listed {
		return true
	}
	left := maxLinkVariables * len(uri)
	fit, _ := c.matching(uri, &left)
	return len(fit) > 0
}

// Rewrites reports whether URIs in results of a server look different to callers.
func (s *ToolSet) Rewrites(server string) bool {
	o := s.owners[server]
	return o != nil && !o.original
}

// exposeUI is _meta of a tool that shows its result in a resource (MCP Apps), with the
// exposed URI of that: _meta.ui.resourceUri, and its older form
// _meta["ui/resourceUri"]. It is nil if there is none.
func exposeUI(meta jsontext.Value, server string) jsontext.Value {
	if !bytes.Contains(meta, []byte("resourceUri")) {
		return nil
	}
	exposed := func(object jsontext.Value, name string) []mcp.Change {
		v := mcp.Field(object, name)
		uri := mcp.Text(v)
		if v.Kind() != '"' || validateURI(uri) != nil {
			return nil
		}
		return []mcp.Change{{Name: name, Value: mcp.QuoteString(exposeURI(server, uri))}}
	}
	changes := exposed(meta, "ui/resourceUri")
	if ui := mcp.Field(meta, "ui"); ui.Kind() == '{' {
		if inside := exposed(ui, "resourceUri"); inside != nil {
			if edited, err := mcp.Edit(ui, inside...); err == nil {
				changes = append(changes, mcp.Change{Name: "ui", Value: edited})
			}
		}
	}
	if changes == nil {
		return nil
	}
	out, err := mcp.Edit(meta, changes...)
	if err != nil {
		return nil
	}
	return out
}
