package mcp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Finding out the era (2026-07-28, basic/versioning): server/discover is asked
// first, and what is not plainly a modern answer is followed by initialize.
// No other method is ever used for it: legacy servers answer some of them
// without a handshake, and others hang up.

func modernDialect(opts *ConnectOptions) dialect {
	return dialect{era: EraModern, version: LatestModern, client: clientInfo(opts)}
}

func legacyDialect(opts *ConnectOptions) dialect {
	return dialect{era: EraLegacy, version: LatestLegacy, client: clientInfo(opts)}
}

func clientInfo(opts *ConnectOptions) jsontext.Value {
	b, err := json.Marshal(opts.Client)
	if err != nil { // only text that is no UTF-8 can do that
		b = []byte(`{"name":"toolhub","version":"0"}`)
	}
	return b
}

// discover asks server/discover and reads the answer ([discovered]). A server that
// refuses the version and yet lists it, as one that is just being replaced by a
// newer one may, is asked once more.
func discover(ask func() (jsontext.Value, error)) (*ServerInfo, error) {
	result, err := ask()
	if e, ok := errors.AsType[*Error](err); ok && e.Code == CodeUnsupportedVersion && slices.Contains(supportedVersions(e), LatestModern) {
		result, err = ask()
	}
	return discovered(result, err)
}

// supportedVersions are those that a -32022 error names.
func supportedVersions(e *Error) []string {
	var data struct {
		Supported []string `json:"supported"`
	}
	_ = json.Unmarshal(e.Data, &data)
	return data.Supported
}

// discovered reads the answer to server/discover. Nil and nil says that the
// server is no modern one, as far as this answer goes.
func discovered(result jsontext.Value, err error) (*ServerInfo, error) {
	if err != nil {
		e, ok := errors.AsType[*Error](err)
		if !ok {
			return nil, err
		}
		switch e.Code {
		case CodeUnsupportedVersion:
			return nil, noCommonVersion(supportedVersions(e))
		case CodeHeaderMismatch, CodeMissingCapability:
			return nil, e // modern, and so broken that it cannot be asked what it is
		}
		return nil, nil
	}
	var r struct {
		Versions     []string       `json:"supportedVersions"`
		Capabilities jsontext.Value `json:"capabilities"`
		Instructions string         `json:"instructions"`
		Meta         jsontext.Value `json:"_meta"`
	}
	if json.Unmarshal(result, &r, lenientOptions) != nil || len(r.Versions) == 0 {
		return nil, nil // some legacy servers answer anything with an empty result
	}
	if !slices.Contains(r.Versions, LatestModern) {
		return nil, noCommonVersion(r.Versions)
	}
	info := &ServerInfo{Era: EraModern, Version: LatestModern, Capabilities: r.Capabilities, Instructions: r.Instructions}
	info.Server = implementation(Field(r.Meta, MetaServerInfo))
	return info, nil
}

// noCommonVersion is nil if initialize is worth a try with a server that speaks
// these versions.
func noCommonVersion(versions []string) error {
	for _, v := range versions {
		if KnownVersion(v) && EraOf(v) == EraLegacy {
			return nil
		}
	}
	if slices.Contains(versions, LatestModern) {
		return NewFault(KindProtocol, "unsupported_version", "the server refuses the MCP version %s, which it says it speaks", LatestModern)
	}
	return NewFault(KindProtocol, "unsupported_version", "the server speaks the MCP versions [%s], none of which is supported here", short(strings.Join(versions, ", ")))
}

func implementation(v jsontext.Value) Implementation {
	var i Implementation
	_ = json.Unmarshal(v, &i, lenientOptions) // for display: as much as there is
	return i
}

func initializeParams(opts *ConnectOptions) jsontext.Value {
	b := []byte(`{"protocolVersion":"` + LatestLegacy + `","capabilities":`)
	b = append(b, opts.Capabilities...)
	b = append(b, `,"clientInfo":`...)
	b = append(b, clientInfo(opts)...)
	return append(b, '}')
}

// initialized reads the result of initialize.
func initialized(result jsontext.Value) (*ServerInfo, error) {
	var r struct {
		Version      string         `json:"protocolVersion"`
		Capabilities jsontext.Value `json:"capabilities"`
		Server       jsontext.Value `json:"serverInfo"`
		Instructions string         `json:"instructions"`
	}
	if err := json.Unmarshal(result, &r, lenientOptions); err != nil {
		return nil, NewFault(KindProtocol, "initialize", "the server's answer to initialize cannot be read: %v", err)
	}
	if !KnownVersion(r.Version) || EraOf(r.Version) != EraLegacy {
		return nil, NewFault(KindProtocol, "unsupported_version",
			"the server answered initialize with version %q, wanted is one of %s, %s", short(r.Version), strings.Join(LegacyVersions(), ", "), Version20241105)
	}
	return &ServerInfo{
		Era: EraLegacy, Version: r.Version, Capabilities: r.Capabilities,
		Server: implementation(r.Server), Instructions: r.Instructions,
	}, nil
}

// errNotModern is for a server that was to be modern and is not.
func errNotModern(err error) error {
	if err == nil {
		return NewFault(KindProtocol, "not_modern", "the server does not answer server/discover as MCP %s demands", LatestModern)
	}
	return NewFault(KindProtocol, "not_modern", "the server is to be a modern one, but server/discover failed: %v", err)
}

// short bounds text of a server's in a message of ours.
func short(s string) string { return Shorten(s, 200) }

// handshake finds the era and opens the session of a legacy server. Since a
// process may be slow to start, a late answer to server/discover still counts:
// both questions are then open and the first good answer wins.
func (c *stdioConn) handshake(ctx context.Context) error {
	modern, legacy := modernDialect(&c.opts), legacyDialect(&c.opts)
	ctx, cancel := context.WithCancel(ctx)
	type verdict struct {
		dialect *dialect
		info    *ServerInfo
		err     error
	}
	verdicts := make(chan verdict, 2)
	open := 0
	defer func() {
		cancel()
		for ; open > 0; open-- {
			<-verdicts
		}
	}()
	ask := func() {
		open++
		go func() {
			info, err := discover(func() (jsontext.Value, error) {
				return c.askAs(ctx, &modern, &Call{Method: MethodDiscover, Timeout: c.opts.RequestTimeout})
			})
			verdicts <- verdict{&modern, info, err}
		}()
	}
	initialize := func() {
		open++
		go func() {
			v := verdict{dialect: &legacy}
			var result jsontext.Value
			result, v.err = c.askAs(ctx, &legacy, &Call{Method: MethodInitialize, Params: initializeParams(&c.opts), Timeout: c.opts.RequestTimeout})
			if v.err == nil {
				v.info, v.err = initialized(result)
			}
			verdicts <- v
		}()
	}
	probe, stopProbe := context.WithCancel(ctx)
	defer stopProbe()
	asked := false // initialize is
	if c.opts.Era == EraChoice(EraLegacy) {
		asked = true
		initialize()
	} else {
		ask()
		if c.opts.Era == EraAuto {
			var stop context.CancelFunc
			probe, stop = context.WithTimeout(probe, c.opts.ProbeTimeout)
			defer stop()
		}
	}
	var failure error
	for {
		timeout := probe.Done()
		if asked {
			timeout = nil
		}
		select {
		case <-timeout:
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			asked = true
			initialize()
		case v := <-verdicts:
			open--
			if v.info != nil {
				v.dialect.version = v.info.Version
				c.dialect = *v.dialect
				c.info.Store(v.info)
				if v.info.Era == EraLegacy {
					c.jump(AppendRequest(nil, nil, NotifyInitialized, nil))
				}
				return nil
			}
			switch {
			case v.dialect == &modern && c.opts.Era == EraChoice(EraModern):
				return errNotModern(v.err)
			case v.dialect == &modern && v.err != nil && !IsKind(v.err, KindTimeout) && !isInvalidAnswer(v.err):
				failure = v.err // modern beyond doubt, or gone
			case v.dialect == &modern && !asked:
				asked = true
				initialize()
				continue
			case v.dialect == &legacy:
				failure = fmt.Errorf("initialize failed: %w", v.err)
			}
			if open == 0 {
				return failure
			}
		}
	}
}
