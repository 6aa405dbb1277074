package catalog

import "github.com/go-json-experiment/json/jsontext"

// Tool is one accepted tool of a server.
type Tool struct {
	// Name is the server's own name of the tool, never the exposed one.
	Name string
	// Def is the definition as the server sent it (only line breaks between
	// tokens are gone, since they would end a message on some transports).
	Def jsontext.Value
	// Annotations are the hints as the server gave them. Whether to believe
	// them is decided by [Annotations.Believe].
	Annotations Annotations
	// InputSchema is Def's member of that name.
	InputSchema jsontext.Value
	// OutputSchema is Def's member of that name, nil when absent.
	OutputSchema jsontext.Value
	// Digest is a hex digest of Def. It changes with every change of it.
	Digest string
	// Notes tell what the exposed definition lacks of Def, nil as a rule.
	Notes []Note

	// head and tail are the exposed definition without its name.
	head, tail []byte
}

// AppendDef appends the definition under an exposed name: Def with only its
// name replaced, without execution (tasks of the 2025-11-25 protocol are not
// offered), and without what Notes tells of.
func (t *Tool) AppendDef(dst []byte, exposed string) []byte { panic("later") }

// Annotations are the hints of a tool about its behaviour (server/tools, tool
// annotations); nil where the server says nothing.
type Annotations struct {
	ReadOnly    *bool `json:"readOnlyHint,omitempty"`
	Destructive *bool `json:"destructiveHint,omitempty"`
	Idempotent  *bool `json:"idempotentHint,omitempty"`
	OpenWorld   *bool `json:"openWorldHint,omitempty"`
}

// Hints are annotations with nothing left open.
type Hints struct {
	ReadOnly    bool `json:"read_only"`
	Destructive bool `json:"destructive"`
	Idempotent  bool `json:"idempotent"`
	OpenWorld   bool `json:"open_world"`
}

// Believe is what may be assumed of a tool (P5). Of a server that the operator
// does not trust it is the worst case, whatever the server says. Of a trusted
// one it is the server's word, and the protocol's default where it is silent:
// not read-only, destructive, not idempotent, open world. Destructive and
// idempotent mean something only for a tool that is not read-only, so silence
// about them means not destructive and idempotent for one that is.
func (a Annotations) Believe(trusted bool) Hints { panic("later") }
