package config

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	stdjson "encoding/json"

	"github.com/go-json-experiment/json"
)

// A secret shows itself to nobody, however it is looked at and whatever it is in.
func TestSecretHides(t *testing.T) {
	t.Parallel()
	const text = "s3cr3t"
	s := NewSecret(text)
	type inside struct {
		Public  Secret
		private Secret
		pointer *Secret
	}
	for _, v := range []any{s, &s, inside{s, s, &s}, &inside{s, s, &s}, []Secret{s}, map[string]Secret{"k": s}, []any{s}, struct{ any }{s}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%p", "%T", "%50v", "% x"} {
			if got := fmt.Sprintf(verb, v); strings.Contains(got, text) || strings.Contains(got, fmt.Sprintf("%x", text)) || strings.Contains(got, fmt.Sprintf("%X", text)) {
				t.Errorf("%s of %T: %s", verb, v, got)
			}
		}
		for name, marshal := range map[string]func(any) ([]byte, error){
			"json":          func(v any) ([]byte, error) { return json.Marshal(v) },
			"encoding/json": stdjson.Marshal,
		} {
			if data, _ := marshal(v); bytes.Contains(data, []byte(text)) {
				t.Errorf("%s of %T: %s", name, v, data)
			}
		}
		var out bytes.Buffer
		slog.New(slog.NewTextHandler(&out, nil)).Info("m", "v", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("m", "v", v)
		if strings.Contains(out.String(), text) {
			t.Errorf("logged %T: %s", v, out.String())
		}
	}
	for _, got := range []string{s.String(), s.GoString(), s.LogValue().String(), fmt.Sprint(s)} {
		if got != "[redacted]" {
			t.Error(got)
		}
	}
	if data, err := json.Marshal(map[string]Secret{"k": s}); err != nil || string(data) != `{"k":"[redacted]"}` {
		t.Errorf("%s %v", data, err)
	}
	if data, err := s.MarshalText(); err != nil || string(data) != "[redacted]" {
		t.Errorf("%s %v", data, err)
	}
	if s.Reveal() != text || (Secret{}).Reveal() != "" {
		t.Error("who asks is told")
	}
}

func TestRef(t *testing.T) { // C3
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Setenv("A", "va")
	t.Setenv("EMPTY", "")
	t.Setenv("NESTED", "${env:A}")
	path := file("token", "tok\n")
	for ref, want := range map[Ref]string{
		"": "", "plain": "plain", "$": "$", "$A": "$A", "a}b": "a}b", "${env:A}": "va", "x${env:A}y${env:A}": "xvayva",
		"$${env:A}": "${env:A}", "$$${env:A}": "$${env:A}", "${env:EMPTY}": "", "Bearer ${env:A}": "Bearer va",
		// What a secret holds is no reference.
		"${env:NESTED}":                              "${env:A}",
		Ref("${file:" + path + "}"):                  "tok",
		Ref("${file:" + file("crlf", "t\r\n") + "}"): "t",
		Ref("${file:" + file("two", "t\n\n") + "}"):  "t\n",
	} {
		got, err := ref.Resolve()
		if err != nil || got.Reveal() != want {
			t.Errorf("%s: %q %v", ref, got.Reveal(), err)
		}
		if err := ref.Validate(); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
		if again, err := ref.inDir("/d").Resolve(); err != nil || again.Reveal() != want {
			t.Errorf("%s becomes %s", ref, ref.inDir("/d"))
		}
	}
	for ref, says := range map[Ref]string{
		"${env:A": "not closed", "${A}": "${env:NAME}", "${}": "no reference", "${env:}": "names nothing", "${file:}": "names nothing",
		"${vault:x}": "${vault:x} is no reference", "${ENV:A}": "no reference", "${env:A=B}": "no name can have", "${env:a\x00}": "no name can have",
	} {
		if err := ref.Validate(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", ref, err)
		}
	}
	for ref, says := range map[Ref]string{
		"${env:TOOLHUB_NOT_SET}":                                         "the environment variable TOOLHUB_NOT_SET is not set",
		Ref("${file:" + dir + "/none}"):                                  "none",
		Ref("${file:" + dir + "}"):                                       "couldn't read",
		Ref("${file:" + file("binary", "\xff\xfe") + "}"):                "no text",
		Ref("${file:" + file("big", strings.Repeat("x", 1<<20+1)) + "}"): "at most 1 MiB",
	} {
		if _, err := ref.Resolve(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if got := Ref("a${file:b/c}$${${env:X}").inDir("/d"); got != "a${file:/d/b/c}$${${env:X}" {
		t.Error(got)
	}
	if !Ref("a${env:X}").HasReference() || Ref("a$${env:X}").HasReference() || Ref("").HasReference() {
		t.Error("HasReference")
	}
}

// Only what references stood for is secret, not the words around them.
func TestReferred(t *testing.T) {
	t.Setenv("TOOLHUB_TEST_A", "alpha")
	t.Setenv("TOOLHUB_TEST_B", "beta")
	for ref, want := range map[Ref][]string{
		"plain $${env:TOOLHUB_TEST_A}":                        nil,
		"${env:TOOLHUB_TEST_A}":                               {"alpha"},
		"user ${env:TOOLHUB_TEST_A}:${env:TOOLHUB_TEST_B} at": {"alpha", "beta"},
	} {
		s, err := ref.Resolve()
		if got := s.Referred(); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s refers to %q, %v", ref, got, err)
		}
	}
	if got := NewSecret("x").Referred(); !slices.Equal(got, []string{"x"}) {
		t.Error(got)
	}
}
