package policy

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"

	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
)

// errNumber is the value of a number that no type of CEL holds.
var errNumber = errors.New("a number is too large to be compared exactly")

// errTaint is the value of taint that nobody has vouched for.
var errTaint = errors.New("the taint of a call that no router made is not known")

// variables are what conditions see of a call. They are made once per decision
// and used by one goroutine.
type variables struct {
	in    Input
	hints catalog.Hints

	args    ref.Val // nil before the first use
	argsErr error
}

// Parent implements [interpreter.Activation].
func (v *variables) Parent() interpreter.Activation { return nil }

// ResolveName implements [interpreter.Activation].
func (v *variables) ResolveName(name string) (any, bool) {
	switch name {
	case "annotations.readOnly":
		return types.Bool(v.hints.ReadOnly), true
	case "annotations.destructive":
		return types.Bool(v.hints.Destructive), true
	case "annotations.idempotent":
		return types.Bool(v.hints.Idempotent), true
	case "annotations.openWorld":
		return types.Bool(v.hints.OpenWorld), true
	case varArgs:
		return v.arguments(), true
	case "principal":
		return types.String(v.in.Principal), true
	case "claims":
		return types.NewStringInterfaceMap(types.DefaultTypeAdapter, v.in.Claims), true
	case varTaint:
		if v.in.TaintUnknown {
			return types.WrapErr(errTaint), true
		}
		return types.NewStringList(types.DefaultTypeAdapter, v.in.Taint), true
	case "server":
		return types.String(v.in.Server), true
	case "tool":
		return types.String(v.in.Tool), true
	case varNow:
		return types.Timestamp{Time: v.in.Now.UTC()}, true
	case varRate:
		return types.Int(max(1, v.in.Rate)), true
	}
	return nil, false
}

// arguments decodes the arguments when a condition first asks for them.
func (v *variables) arguments() ref.Val {
	if v.args == nil {
		v.args, v.argsErr = decodeArguments(v.in.Arguments)
		if v.argsErr != nil {
			v.args = types.WrapErr(v.argsErr)
		}
	}
	return v.args
}

// decodeArguments makes a CEL map of a JSON object. A number is an int, or else
// a uint, if it is written as one and fits; else it is a double if it is below
// 2^53, where doubles are exact to the last integer. Any other number is an
// error as soon as something is done with it: to round it would make two
// different ids equal.
func decodeArguments(args jsontext.Value) (ref.Val, error) {
	if args == nil {
		return types.NewStringInterfaceMap(types.DefaultTypeAdapter, map[string]any{}), nil
	}
	if args.Kind() != '{' {
		return nil, errors.New("the arguments are not an object")
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(args)) // refuses duplicate names and what is no UTF-8
	value, err := decodeValue(dec)
	if err == nil {
		if rest := args[dec.InputOffset():]; len(bytes.TrimSpace(rest)) > 0 {
			err = errors.New("data behind the object")
		}
	}
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return nil, errors.New("the arguments have a name twice in one object")
	case errors.Is(err, errDepth):
		return nil, err
	case err != nil:
		return nil, errors.New("the arguments are no valid JSON")
	}
	return value, nil
}

var errDepth = fmt.Errorf("the arguments are nested deeper than %d levels", mcp.MaxDepth)

func decodeValue(dec *jsontext.Decoder) (ref.Val, error) {
	if dec.StackDepth() > mcp.MaxDepth {
		return nil, errDepth
	}
	tok, err := dec.ReadToken()
	if err != nil {
		return nil, err
	}
	switch tok.Kind() {
	case 'n':
		return types.NullValue, nil
	case 't', 'f':
		return types.Bool(tok.Bool()), nil
	case '"':
		return types.String(tok.String()), nil
	case '0':
		return number(tok.String()), nil
	case '[':
		list := []ref.Val{}
		for dec.PeekKind() != ']' {
			v, err := decodeValue(dec)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := dec.ReadToken()
		return types.NewRefValList(types.DefaultTypeAdapter, list), err
	}
	object := map[string]any{}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, err
		}
		key := name.String()
		if object[key], err = decodeValue(dec); err != nil {
			return nil, err
		}
	}
	_, err = dec.ReadToken()
	return types.NewStringInterfaceMap(types.DefaultTypeAdapter, object), err
}

func number(text string) ref.Val {
	if !strings.ContainsAny(text, ".eE") {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return types.Int(n)
		}
		if n, err := strconv.ParseUint(text, 10, 64); err == nil {
			return types.Uint(n)
		}
		return types.WrapErr(errNumber)
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.Abs(f) >= 1<<53 {
		return types.WrapErr(errNumber)
	}
	return types.Double(f)
}
