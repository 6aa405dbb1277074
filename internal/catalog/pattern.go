package catalog

// Pattern is a compiled glob over "server/tool": both parts are matched
// separately and as a whole, with *, ?, [abc], [!abc] and {one,two}. "*" alone
// is the same as "*/*". It is immutable.
type Pattern struct{}

// CompilePattern compiles a glob over "server/tool". The error is a
// [*PatternError] that says what would be right.
func CompilePattern(pattern string) (*Pattern, error) { panic("later") }

// String is the pattern as written.
func (p *Pattern) String() string { panic("later") }

// Match reports whether the pattern covers the tool, by its own name.
func (p *Pattern) Match(server, tool string) bool { panic("later") }

// PatternError is a glob that cannot be used.
type PatternError struct {
	// Field is where it stood, like "exclude[2]"; "" where that is not known.
	Field   string
	Pattern string
	// Message says what is wrong and what would be right.
	Message string
}

// Error implements error.
func (e *PatternError) Error() string { panic("later") }

// Filter selects tools by globs over "server/tool" (L2): those that match an
// include pattern, all if there is none, without those that match an exclude
// pattern.
type Filter struct {
	Include []string `json:"include,omitempty" yaml:"include,omitempty"`
	Exclude []string `json:"exclude,omitempty" yaml:"exclude,omitempty"`
}

// Compile compiles the filter. The error joins one [*PatternError] per bad pattern.
func (f Filter) Compile() (*Selection, error) { panic("later") }

// Selection is a compiled [Filter]. A nil one selects everything.
type Selection struct{}

// Selects reports whether the tool may be offered and called.
func (s *Selection) Selects(server, tool string) bool { panic("later") }
