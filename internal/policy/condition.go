package policy

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// Bounds on conditions. Arguments come from callers and can be megabytes, so
// what a condition may cost is bounded in steps and not in time: the same call
// gets the same decision on a slow machine.
const (
	// maxCost bounds one evaluation, in CEL's cost units (about one per step
	// and per ten characters of a string looked at).
	maxCost = 50_000
	// maxTotalCost bounds all evaluations of one decision.
	maxTotalCost = 300_000
	// maxWhenBytes, maxWhenDepth and maxRegexp bound what is compiled.
	maxWhenBytes = 8 << 10
	maxWhenDepth = 64
	maxRegexp    = 1_000
)

// Names in conditions.
const (
	varArgs  = "args"
	varTaint = "taint"
	varNow   = "now"
	varRate  = "rate"
	// fnTainted is what the macro tainted expands to; no expression can name it.
	fnTainted = "@tainted"
)

// environment is what conditions are compiled in: immutable, the same for all
// policies, and too big to make for each.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewCustomEnv(
		cel.StdLib(),
		cel.Variable("annotations.readOnly", cel.BoolType),
		cel.Variable("annotations.destructive", cel.BoolType),
		cel.Variable("annotations.idempotent", cel.BoolType),
		cel.Variable("annotations.openWorld", cel.BoolType),
		cel.Variable(varArgs, cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("principal", cel.StringType),
		cel.Variable("claims", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable(varTaint, cel.ListType(cel.StringType)),
		cel.Variable("server", cel.StringType),
		cel.Variable("tool", cel.StringType),
		cel.Variable(varNow, cel.TimestampType),
		cel.Variable(varRate, cel.IntType),
		cel.Function(fnTainted,
			cel.Overload("tainted_list_string_list", []*cel.Type{cel.ListType(cel.StringType), cel.StringType, cel.ListType(cel.StringType)}, cel.BoolType,
				cel.FunctionBinding(tainted))),
		cel.Macros(append(cel.StandardMacros,
			cel.GlobalMacro("tainted", 0, func(mef cel.MacroExprFactory, _ ast.Expr, _ []ast.Expr) (ast.Expr, *cel.Error) {
				return mef.NewCall(fnTainted, mef.NewIdent(varTaint), mef.NewIdent("server"), mef.NewList()), nil
			}),
			cel.GlobalMacro("tainted", 1, func(mef cel.MacroExprFactory, _ ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
				return mef.NewCall(fnTainted, mef.NewIdent(varTaint), mef.NewIdent("server"), args[0]), nil
			}))...),
		// Whether an argument is 1 or 1.0 is the caller's whim.
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ParserExpressionSizeLimit(maxWhenBytes),
		cel.ParserRecursionLimit(maxWhenDepth),
		cel.RegexProgramSizeLimit(maxRegexp),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals()),
	)
})

// tainted reports whether output of another server than the called one, and
// than those ignored, is in the model's context. What flows back to the server
// that it came from tells that server nothing new.
func tainted(args ...ref.Val) ref.Val {
	taint, ok := args[0].(traits.Lister)
	ignore, ok2 := args[2].(traits.Lister)
	if !ok || !ok2 {
		return types.MaybeNoSuchOverloadErr(args[0])
	}
	for it := taint.Iterator(); it.HasNext() == types.True; {
		from := it.Next()
		if from.Equal(args[1]) != types.True && ignore.Contains(from) != types.True {
			return types.True
		}
	}
	return types.False
}

// condition is a compiled `when`.
type condition struct {
	program cel.Program
	// varies says that it looks at something that differs between two calls of
	// one tool by one caller: arguments, taint, time or rate.
	varies bool
	// rate says that it looks at the rate.
	rate bool
}

func compileCondition(when string) (*condition, error) {
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("couldn't make the environment of conditions: %w", err)
	}
	checked, issues := env.Compile(when)
	if issues.Err() != nil {
		return nil, errors.New(conditionProblem(issues))
	}
	if t := checked.OutputType(); !t.IsExactType(cel.BoolType) {
		return nil, fmt.Errorf("a condition is true or false, this is %s; compare it with something, as in args.force == true", cel.FormatCELType(t))
	}
	program, err := env.Program(checked, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(maxCost))
	if err != nil {
		return nil, err
	}
	c := &condition{program: program}
	for _, r := range checked.NativeRep().ReferenceMap() {
		c.rate = c.rate || r.Name == varRate
		c.varies = c.varies || c.rate || r.Name == varArgs || r.Name == varTaint || r.Name == varNow
	}
	return c, nil
}

// conditionProblem is what the compiler found first, on one line.
func conditionProblem(issues *cel.Issues) string {
	all := issues.Errors()
	if len(all) == 0 {
		return issues.Err().Error()
	}
	e := all[0]
	message, _, _ := strings.Cut(e.Message, "\n")
	message = strings.ReplaceAll(message, " (in container '')", "")
	s := fmt.Sprintf("at column %d: %s", e.Location.Column()+1, message)
	if strings.Contains(message, "undeclared reference") {
		s += "; there are args, annotations.readOnly, annotations.destructive, annotations.idempotent, annotations.openWorld," +
			" principal, claims, taint, tainted(), tainted([…]), server, tool, now and rate"
	}
	return s
}

// eval evaluates the condition. Failed says why there is no answer, without
// anything that a caller sent.
func (c *condition) eval(e *evaluation) (is bool, failed string) {
	if e.left == 0 {
		return false, "the conditions of this decision cost more than allowed"
	}
	out, details, err := c.program.Eval(e.vars)
	spent := uint64(maxCost)
	if details != nil && details.ActualCost() != nil {
		spent = *details.ActualCost()
	}
	e.left -= min(e.left, spent)
	if err != nil {
		return false, e.vars.failure(err)
	}
	value, ok := out.(types.Bool)
	if !ok {
		return false, "the condition is not true or false"
	}
	return bool(value), ""
}

// failure puts an evaluation error into words of our own: the library's contain
// what callers sent.
func (v *variables) failure(err error) string {
	cancelled, isCancelled := errors.AsType[interpreter.EvalCancelledError](err)
	switch text := err.Error(); {
	case isCancelled && cancelled.Cause == interpreter.CostLimitExceeded || strings.Contains(text, "cost limit exceeded"):
		return "the condition costs more than allowed"
	case v.argsErr != nil:
		return v.argsErr.Error()
	case strings.Contains(text, errNumber.Error()):
		return errNumber.Error()
	case strings.Contains(text, "no such key"):
		return "a member that the condition reads is not there; has() tests for it"
	case strings.Contains(text, "no such overload"):
		return "an operation of the condition does not fit the type of a value"
	case strings.Contains(text, "division by zero"), strings.Contains(text, "modulus by zero"), strings.Contains(text, "overflow"):
		return "a calculation of the condition has no result"
	case strings.Contains(text, "index out of bounds"):
		return "a list that the condition reads is too short"
	}
	return "the condition could not be evaluated"
}
