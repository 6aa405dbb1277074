package main

import (
	"context"
	"fmt"
	"os"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// scenarios are those of both requirement sets, by the suite's names. What is
// asked of the client is what the Go SDK's own client of the suite does.
var scenarios = map[string]func(context.Context, *client) error{
	"initialize":                          listOnly,
	"request-metadata":                    listOnly,
	"json-schema-ref-no-deref":            listOnly,
	"tools_call":                          addNumbers,
	"sse-retry":                           callOne("test_reconnection"),
	"elicitation-sep1034-client-defaults": elicit,
	"sep-2322-client-request-state":       roundTrips,
	"http-standard-headers":               oneOfEach,
	"http-custom-headers":                 givenCalls,
	"http-invalid-tool-headers":           allTools,
	"json-schema-2020-12-preservation":    echoSchema,

	"auth/2025-03-26-oauth-metadata-backcompat": authorized,
	"auth/2025-03-26-oauth-endpoint-fallback":   authorized,
	"auth/authorization-server-migration":       authorized,
	"auth/basic-cimd":                           authorized,
	"auth/iss-normalized":                       authorized,
	"auth/iss-not-advertised":                   authorized,
	"auth/iss-supported":                        authorized,
	"auth/iss-supported-missing":                authorized,
	"auth/iss-unexpected":                       authorized,
	"auth/iss-wrong-issuer":                     authorized,
	"auth/metadata-default":                     authorized,
	"auth/metadata-issuer-mismatch":             authorized,
	"auth/metadata-var1":                        authorized,
	"auth/metadata-var2":                        authorized,
	"auth/metadata-var3":                        authorized,
	"auth/offline-access-not-supported":         authorized,
	"auth/offline-access-scope":                 authorized,
	"auth/pre-registration":                     authorized,
	"auth/resource-mismatch":                    authorized,
	"auth/scope-from-scopes-supported":          authorized,
	"auth/scope-from-www-authenticate":          authorized,
	"auth/scope-omitted-when-undefined":         authorized,
	"auth/scope-retry-limit":                    authorized,
	"auth/scope-step-up":                        authorized,
	"auth/token-endpoint-auth-basic":            authorized,
	"auth/token-endpoint-auth-none":             authorized,
	"auth/token-endpoint-auth-post":             authorized,

	"auth/client-credentials-basic": clientCredentials,
	"auth/client-credentials-jwt":   clientCredentials,
}

func listOnly(ctx context.Context, c *client) error {
	return c.with(ctx, func() error { return c.list(ctx) })
}

// callOne lists the tools and calls one.
func callOne(tool string) func(context.Context, *client) error {
	return func(ctx context.Context, c *client) error { return c.listAndCall(ctx, tool, jsontext.Value("{}")) }
}

func (c *client) listAndCall(ctx context.Context, tool string, arguments jsontext.Value) error {
	return c.with(ctx, func() error {
		if err := c.list(ctx); err != nil {
			return err
		}
		return c.call(ctx, tool, arguments)
	})
}

func addNumbers(ctx context.Context, c *client) error {
	return c.listAndCall(ctx, "add_numbers", jsontext.Value(`{"a":5,"b":3}`))
}

// elicit accepts what the server proposes.
func elicit(ctx context.Context, c *client) error {
	c.answer = func(_ string, params jsontext.Value) jsontext.Value {
		var changes []mcp.Change
		_ = mcp.EachField(mcp.Field(mcp.Field(params, "requestedSchema"), "properties"), func(name string, schema jsontext.Value) error {
			changes = append(changes, mcp.Change{Name: name, Value: mcp.Field(schema, "default")})
			return nil
		})
		content, err := mcp.Edit(nil, changes...)
		if err != nil {
			return jsontext.Value(`{"action":"cancel"}`)
		}
		return jsontext.Value(`{"action":"accept","content":` + string(content) + `}`)
	}
	return c.listAndCall(ctx, "test_client_elicitation_defaults", jsontext.Value("{}"))
}

// roundTrips calls tools that ask for input; one of them must not be understood.
func roundTrips(ctx context.Context, c *client) error {
	c.answer = func(string, jsontext.Value) jsontext.Value {
		return jsontext.Value(`{"action":"accept","content":{"confirmed":true}}`)
	}
	return c.with(ctx, func() error {
		if err := c.list(ctx); err != nil {
			return err
		}
		for _, name := range []string{"test_mrtr_echo_state", "test_mrtr_no_state", "test_mrtr_unrelated", "test_mrtr_no_result_type"} {
			c.try(ctx, name, jsontext.Value("{}"))
		}
		return nil
	})
}

// try calls a tool in a scenario where the server may refuse the call.
func (c *client) try(ctx context.Context, tool string, arguments jsontext.Value) {
	if err := c.call(ctx, tool, arguments); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", tool, err)
	}
}

// oneOfEach makes one request of each kind that has a name.
func oneOfEach(ctx context.Context, c *client) error {
	return c.with(ctx, func() error {
		if err := c.list(ctx); err != nil {
			return err
		}
		for _, t := range c.catalog.Tools[:min(1, len(c.catalog.Tools))] {
			c.try(ctx, t.Name, jsontext.Value("{}"))
		}
		for _, of := range []struct{ list, items, get, key string }{
			{"resources/list", "resources", "resources/read", "uri"},
			{"prompts/list", "prompts", "prompts/get", "name"},
		} {
			result, err := c.conn.Call(ctx, &mcp.Call{Method: of.list, Params: jsontext.Value("{}")})
			if err != nil {
				return err
			}
			items, err := elements(result, of.items)
			if err != nil {
				return err
			}
			for _, item := range items[:min(1, len(items))] {
				params := jsontext.Value(`{"` + of.key + `":` + string(mcp.Field(item, of.key)) + `}`)
				if _, err := c.conn.Call(ctx, &mcp.Call{Method: of.get, Params: params}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// givenCalls makes the calls that the suite asks for.
func givenCalls(ctx context.Context, c *client) error {
	calls, err := elements(c.given, "toolCalls")
	if err != nil {
		return err
	}
	return c.with(ctx, func() error {
		if err := c.list(ctx); err != nil {
			return err
		}
		for _, call := range calls {
			c.try(ctx, mcp.FieldString(call, "name"), mcp.Field(call, "arguments"))
		}
		return nil
	})
}

// allTools calls every tool that the hub would offer.
func allTools(ctx context.Context, c *client) error {
	return c.with(ctx, func() error {
		if err := c.list(ctx); err != nil {
			return err
		}
		for _, t := range c.catalog.Tools {
			c.try(ctx, t.Name, jsontext.Value(`{"region":"us-west1"}`))
		}
		return nil
	})
}

// echoSchema sends a schema back as it was understood.
func echoSchema(ctx context.Context, c *client) error {
	return c.with(ctx, func() error {
		if err := c.list(ctx); err != nil {
			return err
		}
		tool, ok := c.catalog.Tool("json_schema_2020_12_tool")
		if !ok {
			return fmt.Errorf("the tool with the schema is not listed")
		}
		return c.call(ctx, "json_schema_echo", jsontext.Value(`{"schema":`+string(tool.InputSchema)+`}`))
	})
}

// elements are those of the array that is a member of object.
func elements(object jsontext.Value, member string) (out []jsontext.Value, err error) {
	err = json.Unmarshal(mcp.Field(object, member), &out, jsontext.AllowDuplicateNames(true))
	if err != nil {
		err = fmt.Errorf("%s: %w", member, err)
	}
	return out, err
}
