package mcp

import "github.com/go-json-experiment/json/jsontext"

// Discovery is what a server says of itself in answer to server/discover.
type Discovery struct {
	// Capabilities is a JSON object, nil for none.
	Capabilities jsontext.Value
	// Instructions are for the model, "" for none.
	Instructions string
	// ServerInfo is a JSON object with name and version.
	ServerInfo jsontext.Value
}

// Result is the result of server/discover. It may be kept by nobody: what is said
// here depends on who asks, and changes.
func (d *Discovery) Result() jsontext.Value {
	b := append([]byte(nil), `{"resultType":"complete","supportedVersions":[`...)
	for i, v := range ModernVersions() {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendString(b, v)
	}
	b = append(b, `],"capabilities":`...)
	if d.Capabilities == nil {
		b = append(b, `{}`...)
	}
	b = append(b, d.Capabilities...)
	if d.Instructions != "" {
		b = append(b, `,"instructions":`...)
		b = AppendString(b, d.Instructions)
	}
	b = append(b, `,"ttlMs":0,"cacheScope":"private","_meta":{"`+MetaServerInfo+`":`...)
	b = append(b, d.ServerInfo...)
	return append(b, `}}`...)
}

// ServerInfoJSON is the serverInfo of a server with this name and version.
func ServerInfoJSON(name, version string) jsontext.Value {
	b := AppendString([]byte(`{"name":`), name)
	b = AppendString(append(b, `,"version":`...), version)
	return append(b, '}')
}
