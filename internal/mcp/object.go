package mcp

import "github.com/go-json-experiment/json/jsontext"

// Params is the part of a request's params that routing looks at. All of it
// aliases the raw params.
type Params struct {
	// Name is params.name (tools/call, prompts/get).
	Name string
	// URI is params.uri (resources/read).
	URI string
	// TaskID is params.taskId (extension tasks).
	TaskID string
	// Cursor is params.cursor; HasCursor tells "" from absent, since "" is a cursor.
	Cursor    string
	HasCursor bool
	// Arguments is params.arguments, nil when absent.
	Arguments jsontext.Value
	// Meta is params._meta, nil when absent.
	Meta jsontext.Value
}

// ParseParams reads the members that routing needs. A nil params is an empty
// one. The error is an [*Error] with code -32602 that names the member.
func ParseParams(params jsontext.Value) (Params, error) {
	var p Params
	if params == nil {
		return p, nil
	}
	str := func(name string, v jsontext.Value, into *string) error {
		if v.Kind() != '"' {
			return InvalidParams("params." + name + " must be a string")
		}
		*into = Text(v)
		return nil
	}
	err := EachField(params, func(name string, v jsontext.Value) error {
		switch name {
		case "name":
			return str(name, v, &p.Name)
		case "uri":
			return str(name, v, &p.URI)
		case "taskId":
			p.TaskID = Text(v) // of tools it may be anything
		case "cursor":
			p.HasCursor = true
			return str(name, v, &p.Cursor)
		case "arguments":
			if v.Kind() == 'n' {
				return nil // what clients send that have none; as good as absent
			}
			if v.Kind() != '{' {
				return InvalidParams("params.arguments must be an object")
			}
			p.Arguments = v
		case "_meta":
			if v.Kind() != '{' {
				return InvalidParams("params._meta must be an object")
			}
			p.Meta = v
		}
		return nil
	})
	return p, err
}

// Field returns the raw member name of the JSON object obj, nil when it is
// absent or obj is no object.
func Field(obj jsontext.Value, name string) jsontext.Value {
	var found jsontext.Value
	if obj.Kind() != '{' {
		return nil
	}
	_, _ = walk(obj, func(m member) error {
		if m.name == name {
			found = jsontext.Value(obj[m.value:m.end:m.end])
		}
		return nil
	})
	return found
}

// FieldString returns the string member name of obj, "" when it is absent or
// of another kind.
func FieldString(obj jsontext.Value, name string) string {
	v := Field(obj, name)
	if v == nil {
		return ""
	}
	return Text(v)
}

// EachField calls f for each member of obj, in order; the values alias obj. It
// returns the first error of f, or an [*Error] if obj is no object or has two
// members of one name. Like all functions that look into an object, it expects
// valid JSON, which all parts of a parsed [Message] are.
func EachField(obj jsontext.Value, f func(name string, value jsontext.Value) error) error {
	_, err := walk(obj, func(m member) error {
		return f(m.name, jsontext.Value(obj[m.value:m.end:m.end]))
	})
	return err
}

// Change is one change that [Edit] makes: a nil Value removes the member.
type Change struct {
	Name  string
	Value jsontext.Value
}

// Edit returns a copy of the JSON object obj with the changes made: a member
// that is there is replaced in its place, another is appended in the order
// given. All other bytes stay as they are, white space included. A nil obj is an
// empty object. The error is an [*Error] if obj is no JSON object.
func Edit(obj jsontext.Value, changes ...Change) (jsontext.Value, error) {
	if obj == nil {
		obj = jsontext.Value("{}")
	}
	size := len(obj)
	for _, c := range changes {
		size += len(c.Name) + len(c.Value) + 4
	}
	out := make([]byte, 0, size)
	var (
		done     = make([]bool, len(changes))
		copied   int  // obj[:copied] is dealt with
		kept     bool // a member is in the output
		last     int  // where the last member ended, that is in front of its comma
		dropHead bool // all members so far are removed: the next one needs no comma
	)
	closing, err := walk(obj, func(m member) error {
		if dropHead {
			copied, dropHead = m.start, false
		}
		change := -1
		for i, c := range changes {
			if c.Name == m.name {
				change, done[i] = i, true // of two changes of one member the last one counts
			}
		}
		switch {
		case change < 0:
			kept = true
		case changes[change].Value != nil:
			kept = true
			out = append(out, obj[copied:m.value]...)
			out = append(out, changes[change].Value...)
			copied = m.end
		case kept: // removed, with the comma in front of it
			out = append(out, obj[copied:max(copied, last)]...)
			copied = m.end
		default: // removed, with the comma behind it
			out = append(out, obj[copied:m.start]...)
			copied, dropHead = m.end, true
		}
		last = m.end
		return nil
	})
	if err != nil {
		return nil, err
	}
	if dropHead {
		copied = closing
	}
	if kept {
		out = append(out, obj[copied:max(copied, last)]...)
		copied = max(copied, last)
	} else {
		out = append(out, obj[copied:closing]...)
		copied = closing
	}
	for i, c := range changes {
		if done[i] || c.Value == nil {
			continue
		}
		if kept {
			out = append(out, ',')
		}
		kept = true
		out = AppendString(out, c.Name)
		out = append(out, ':')
		out = append(out, c.Value...)
	}
	return append(out, obj[copied:]...), nil
}
