package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

type diceIn struct {
	Dice string `json:"dice,omitempty" jsonschema:"what to roll as NdS+M, for example d20, 2d6 or 3d8-1; default d6"`
}

type diceOut struct {
	Dice  string `json:"dice"`
	Rolls []int  `json:"rolls"`
	Total int    `json:"total"`
}

var diceNotation = regexp.MustCompile(`^(\d{0,3})d(\d{1,4})([+-]\d{1,4})?$`)

// newDice makes the builtin server `dice`, whose results are easily told apart.
func newDice() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "dice", Title: "Dice", Version: "1.0.0"}, &sdk.ServerOptions{Capabilities: &sdk.ServerCapabilities{}})
	tool := &sdk.Tool{
		Name: "roll", Title: "Roll dice", Description: "Rolls dice written in the usual notation.",
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: new(false)},
	}
	sdk.AddTool(s, tool, func(_ context.Context, _ *sdk.CallToolRequest, in diceIn) (*sdk.CallToolResult, diceOut, error) {
		out, err := rollDice(in.Dice)
		if err != nil {
			return nil, out, err
		}
		text := fmt.Sprintf("%s: %s = %d", out.Dice, strings.Trim(fmt.Sprint(out.Rolls), "[]"), out.Total)
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, out, nil
	})
	return s
}

func rollDice(notation string) (diceOut, error) {
	notation = strings.ToLower(strings.ReplaceAll(notation, " ", ""))
	if notation == "" {
		notation = "d6"
	}
	out := diceOut{Dice: notation, Rolls: []int{}}
	m := diceNotation.FindStringSubmatch(notation)
	if m == nil {
		return out, fmt.Errorf("couldn't read the dice %q, want something like 2d6+1", notation)
	}
	count, sides, plus := 1, 0, 0
	if m[1] != "" {
		count, _ = strconv.Atoi(m[1])
	}
	sides, _ = strconv.Atoi(m[2])
	if m[3] != "" {
		plus, _ = strconv.Atoi(m[3])
	}
	if count < 1 || count > 100 || sides < 2 || sides > 1000 {
		return out, fmt.Errorf("dice %q are out of range, want 1 to 100 dice of 2 to 1000 sides", notation)
	}
	out.Total = plus
	for range count {
		n := 1 + rand.IntN(sides)
		out.Rolls = append(out.Rolls, n)
		out.Total += n
	}
	return out, nil
}
