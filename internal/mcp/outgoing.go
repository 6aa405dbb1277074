package mcp

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// dialect is how requests are put on one connection.
type dialect struct {
	era     Era
	version string
	client  jsontext.Value // clientInfo
}

// outgoing is a call translated for one connection, and what of the caller's
// params is needed to translate back.
type outgoing struct {
	*Call
	id   uint64
	body []byte // the whole JSON-RPC request
	// name is params.name, params.uri or that of a task.
	name string
	// token is the caller's own progress token, nil if it wants no progress; the
	// server gets our id instead, which no other call of this connection has.
	token jsontext.Value
	level logLevel
	// asks says that the caller declared a capability for requests of the server's,
	// which only legacy ones make.
	asks bool
}

const reservedMeta = "io.modelcontextprotocol/"

// translate makes the body that the call becomes on this connection: all of its
// params stay byte for byte but _meta. The error is a [*Fault] of kind invalid.
func (o *outgoing) translate(d *dialect) error {
	b := make([]byte, 0, len(o.Params)+len(o.Method)+len(d.client)+256)
	b = append(b, `{"jsonrpc":"2.0","id":`...)
	b = strconv.AppendUint(b, o.id, 10)
	b = append(b, `,"method":`...)
	b = AppendString(b, o.Method)
	if o.Params != nil || d.era == EraModern {
		b = append(b, `,"params":`...)
		var err error
		if b, err = o.appendParams(b, d); err != nil {
			return err
		}
	}
	o.body = append(b, '}')
	return nil
}

func (o *outgoing) appendParams(b []byte, d *dialect) ([]byte, error) {
	params := o.Params
	if params == nil {
		params = jsontext.Value("{}")
	}
	copied, kept, hasMeta := 0, false, false
	closing, err := walk(params, func(m member) error {
		kept = true
		value := params[m.value:m.end:m.end]
		switch m.name {
		case "name", "uri":
			o.name = Text(value)
		case "taskId":
			if isTaskMethod(o.Method) {
				o.name = Text(value)
			}
		case "_meta":
			hasMeta = true
			b = append(b, params[copied:m.value]...)
			copied = m.end
			var err error
			b, err = o.appendMeta(b, value, d)
			return err
		}
		return nil
	})
	if err != nil {
		if _, ok := asFault(err); ok {
			return nil, err
		}
		return nil, NewFault(KindInvalid, "params", "params are not a valid JSON object: %v", err)
	}
	b = append(b, params[copied:closing]...)
	if d.era == EraModern && !hasMeta {
		if kept {
			b = append(b, ',')
		}
		b = append(b, `"_meta":`...)
		if b, err = o.appendMeta(b, jsontext.Value("{}"), d); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func (o *outgoing) appendMeta(b []byte, meta jsontext.Value, d *dialect) ([]byte, error) {
	if meta.Kind() != '{' {
		return nil, NewFault(KindInvalid, "params", "params._meta must be an object")
	}
	start := len(b) + 1
	b = append(b, '{')
	comma := func() {
		if len(b) > start {
			b = append(b, ',')
		}
	}
	var hasClient, hasCapabilities bool
	_, err := walk(meta, func(m member) error {
		value := meta[m.value:m.end:m.end]
		switch m.name {
		case MetaProgressToken:
			if k := value.Kind(); k != '"' && k != '0' {
				return NewFault(KindInvalid, "params", "params._meta.progressToken must be a string or an integer")
			}
			o.token = value
			comma()
			b = append(b, `"progressToken":`...)
			b = strconv.AppendUint(b, o.id, 10)
			return nil
		case MetaProtocolVersion:
			return nil // it is per hop, and ours follows
		case MetaLogLevel:
			if o.level = parseLogLevel(Text(value)); o.level == 0 {
				return NewFault(KindInvalid, "params", "params._meta[%q] must be one of %s", MetaLogLevel, strings.Join(logLevels[1:], ", "))
			}
		case MetaClientCapabilities:
			hasCapabilities = true
			o.asks = d.era == EraLegacy && (Field(value, "elicitation") != nil || Field(value, "sampling") != nil || Field(value, "roots") != nil)
		case MetaClientInfo:
			hasClient = true
		}
		if d.era == EraLegacy && strings.HasPrefix(m.name, reservedMeta) {
			return nil
		}
		comma()
		b = append(b, meta[m.start:m.end]...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if d.era == EraModern {
		comma()
		b = append(b, `"`+MetaProtocolVersion+`":`...)
		b = AppendString(b, d.version)
		if !hasCapabilities {
			b = append(b, `,"`+MetaClientCapabilities+`":{}`...)
		}
		if !hasClient {
			b = append(b, `,"`+MetaClientInfo+`":`...)
			b = append(b, d.client...)
		}
	}
	return append(b, '}'), nil
}

// isID reports whether raw, an id or progress token that a server sent, is our
// number n. Some servers echo 7 as "7" or 7.0.
func isID(raw jsontext.Value, n uint64) bool {
	got, ok := ourID(raw)
	return ok && got == n
}

// ourID reads an id that we gave out, in whatever form it comes back.
func ourID(raw jsontext.Value) (uint64, bool) {
	s := string(raw)
	if raw.Kind() == '"' {
		s = Text(raw)
	}
	if n, err := strconv.ParseUint(s, 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f < 0 || f > 1<<53 || f != float64(uint64(f)) {
		return 0, false
	}
	return uint64(f), true
}
