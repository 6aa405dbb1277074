package catalog

import (
	"fmt"
	"strings"

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
	return server, scheme + own, ok && server != "" && own != ""
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

// ResolveURI finds the owner of a resource. What is not listed reaches its owner
// too, since a link or a template may lead to it; but not where two templates of
// the owners in question fit, since the hub does not guess (M6). The error is a
// -32602 [*mcp.Error] whose data has the URI.
func (s *ToolSet) ResolveURI(uri string) (URITarget, error) {
	unknown := func(format string, args ...any) (URITarget, error) {
		e := mcp.InvalidParams(fmt.Sprintf(format, args...))
		e.Data = append(append([]byte(`{"uri":`), mcp.QuoteString(uri)...), '}')
		return URITarget{}, e
	}
	if len(uri) > maxURI {
		return unknown("params.uri has %d bytes, at most %d are allowed", len(uri), maxURI)
	}
	if e, ok := s.lists[KindResource].resolve(uri); ok {
		return URITarget{Server: e.Server, URI: e.Item.Key, Listed: true}, nil
	}
	var among []*resourceOwner
	own := uri
	if server, rest, ok := ownURI(uri); ok && s.owners[server] != nil && !s.owners[server].original {
		among, own = []*resourceOwner{s.owners[server]}, rest
	} else {
		for _, o := range s.originals {
			among = append(among, s.owners[o])
		}
	}
	var found *resourceOwner
	fits := 0
	for _, o := range among {
		if o.hidden(KindResource, own) {
			continue
		}
		if _, listed := o.Catalog.Resource(own); listed && !o.original {
			return URITarget{Server: o.Server, URI: own, Listed: true}, nil
		}
		if n := len(o.Catalog.Matching(own)); n > 0 {
			fits += n
			found = o
		} else if len(among) == 1 {
			found = o
		}
	}
	switch {
	case fits > 1:
		return unknown("the resource %.200q is ambiguous: %d templates fit it", uri, fits)
	case found == nil || validateURI(own) != nil:
		return unknown("there is no resource %.200q", uri)
	}
	return URITarget{Server: found.Server, URI: own}, nil
}

// ResolveTemplate finds the owner of an exposed URI template.
func (s *ToolSet) ResolveTemplate(uriTemplate string) (server, own string, ok bool) {
	e, ok := s.lists[KindTemplate].resolve(uriTemplate)
	if !ok {
		return "", "", false
	}
	return e.Server, e.Item.Key, true
}

// ExposeURI is the form in which callers see a URI that a server's result has. A
// URI of the web that is none of the server's resources means the web.
func (s *ToolSet) ExposeURI(server, uri string) string {
	o := s.owners[server]
	if o == nil || o.original {
		return uri
	}
	if scheme, _, _ := strings.Cut(uri, ":"); strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https") {
		if _, listed := o.Catalog.Resource(uri); !listed && len(o.Catalog.Matching(uri)) == 0 {
			return uri
		}
	}
	return exposeURI(server, uri)
}

// Rewrites reports whether URIs in results of a server look different to callers.
func (s *ToolSet) Rewrites(server string) bool {
	o := s.owners[server]
	return o != nil && !o.original
}
