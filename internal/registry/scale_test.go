package registry_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sync/errgroup"

	"toolhub/internal/catalog"
	"toolhub/internal/config"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

// manyTools is how many tools each server has.
const manyTools = 1000

// A hub with 100,000 tools: all are published, arrive in one View elsewhere, make
// one list, and every one of them is found by its name.
func TestHundredThousandItems(t *testing.T) { // L9
	t.Parallel()
	// With 100 servers that is what a hub is meant for; 1,000 servers at once are
	// tested in integration. The race detector needs many times as long, and sees
	// no more in more of the same.
	manyServers := 100
	if raceEnabled {
		manyServers = 20
	}
	h := newHub(t)
	file := &config.File{Settings: config.Settings{Policy: &config.Policy{}, MaxServers: manyServers, MaxCatalogItems: manyServers * manyTools}}
	file.Policy.Spec.AllowAll = true
	for i := range manyServers {
		file.Servers = append(file.Servers, config.Server{ID: serverID(i), Builtin: "clock"})
	}
	if _, err := registry.Apply(t.Context(), h.conn, file); err != nil {
		t.Fatal(err)
	}
	h.lease("w1", "i1")
	var publishers errgroup.Group
	publishers.SetLimit(8)
	for i := range manyServers {
		publishers.Go(func() error {
			epoch, err := h.Claim(t.Context(), "w1", "i1", serverID(i))
			if err != nil {
				return err
			}
			if err := h.PublishCatalog(t.Context(), epoch, manyListing(i)); err != nil {
				return err
			}
			return h.PublishStatus(t.Context(), "w1", serverID(i), epoch, registry.Status{State: registry.StateUp})
		})
	}
	if err := publishers.Wait(); err != nil {
		t.Fatal(err)
	}

	// Another process starts with what is stored.
	allReady := func(v *registry.View) bool {
		return len(v.Servers) == manyServers && !slices.ContainsFunc(v.Servers, func(s *registry.Server) bool { return !s.Ready() })
	}
	v := join(t, h.srv, "router.r1").until("all servers ready", allReady)
	set := catalog.Build(sourcesOf(v), v.Settings.Prefix)
	if len(set.Entries) != manyServers*manyTools || len(set.Rejected) != 0 {
		t.Fatalf("%d tools are listed, %d rejected", len(set.Entries), len(set.Rejected))
	}
	for i := range manyServers {
		for n := range manyTools {
			e, ok := set.Resolve(serverID(i) + "__" + toolName(n))
			if !ok || e.Server != serverID(i) || e.Tool.Name != toolName(n) || e != &set.Entries[i*manyTools+n] {
				t.Fatalf("tool %d of server %d resolves to %+v", n, i, e)
			}
		}
	}
	// All pages together are the list.
	tools, cursor := 0, ""
	for more := true; more; more = cursor != "" {
		page, next, err := set.Page(catalog.KindTool, cursor, cursor != "", v.Settings.PageSize)
		if err != nil {
			t.Fatal(err)
		}
		var defs []jsontext.Value
		if err := json.Unmarshal(page, &defs); err != nil {
			t.Fatal(err)
		}
		tools, cursor = tools+len(defs), next
	}
	if tools != manyServers*manyTools {
		t.Errorf("the pages have %d tools", tools)
	}
	// The process that published has the same list.
	if own := catalog.Build(sourcesOf(h.until("all servers ready here too", allReady)), ""); own.ID != set.ID {
		t.Errorf("two processes have the lists %s and %s", set.ID, own.ID)
	}
}

func serverID(i int) string { return fmt.Sprintf("server_%03d", i) }

func toolName(n int) string { return fmt.Sprintf("tool_%04d", n) }

func sourcesOf(v *registry.View) []catalog.Source {
	var sources []catalog.Source
	for _, s := range v.Servers {
		if s.Ready() {
			sources = append(sources, catalog.Source{Server: s.ID(), Naming: s.Config.Naming, Prefix: s.Config.Prefix, Catalog: s.Catalog})
		}
	}
	return sources
}

// manyListing is a catalog like real ones; every tenth packs so badly that its
// manifest cannot hold it.
func manyListing(server int) *catalog.Catalog {
	defs := make([]jsontext.Value, manyTools)
	random := rand.New(rand.NewPCG(uint64(server), 0))
	for n := range defs {
		text := "Finds what was asked for and says where it is, with as many words as such tools use."
		if server%10 == 0 {
			text = fmt.Sprintf("%x%x%x%x", random.Uint64(), random.Uint64(), random.Uint64(), random.Uint64())
		}
		defs[n] = jsontext.Value(fmt.Sprintf(`{"name":%q,"description":%q,"inputSchema":{"type":"object","properties":{"query":{"type":"string"},"limit":{"type":"integer"}},"required":["query"]}}`, toolName(n), text))
	}
	return catalog.New(serverID(server), mcp.ServerInfo{Era: mcp.EraModern, Version: mcp.LatestModern}, catalog.Lists{Tools: defs})
}
