package mcp

import (
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

func TestDiscovery(t *testing.T) {
	t.Parallel()
	info := ServerInfoJSON("a \"b\"", "1.2.3")
	for _, tt := range []struct {
		d    Discovery
		want string
	}{
		{
			Discovery{ServerInfo: info},
			`{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{},"ttlMs":0,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"a \"b\"","version":"1.2.3"}}}`,
		},
		{
			Discovery{ServerInfo: info, Capabilities: jsontext.Value(`{"tools":{}}`), Instructions: "line\nline"},
			`{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"instructions":"line\nline","ttlMs":0,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"a \"b\"","version":"1.2.3"}}}`,
		},
	} {
		if got := tt.d.Result(); string(got) != tt.want || !got.IsValid() {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}
