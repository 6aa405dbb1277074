package config

import (
	"fmt"
	"strings"
)

// Problem is one thing that is wrong with a configuration file.
type Problem struct {
	// File and Line say where; Line is 0 where the whole file is meant.
	File string `json:"file"`
	Line int    `json:"line,omitzero"`
	// Field is the path of the field, such as servers.github.timeout; "" is the
	// file itself.
	Field string `json:"field,omitzero"`
	// Message says what is wrong and what would be right.
	Message string `json:"message"`
}

// String is file:line: field: message.
func (p Problem) String() string {
	s := p.File
	if p.Line > 0 {
		s += fmt.Sprintf(":%d", p.Line)
	}
	s += ": "
	if p.Field != "" {
		s += p.Field + ": "
	}
	return s + p.Message
}

// Error is everything that is wrong with a file, in the order of its lines.
type Error struct {
	Problems []Problem
}

// Error has one line per problem.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}
