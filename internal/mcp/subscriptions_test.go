package mcp

import (
	"testing"

	"pgregory.net/rapid"
)

func TestIsPartOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		uri, whole string
		want       bool
	}{
		{"x:a/b", "x:a", true},
		{"x:a#b", "x:a", true},
		{"x:a?b", "x:a", true},
		{"x:a/b", "x:a/", true},
		{"x:ab", "x:a", false},
		{"x:a", "x:a", false},
		{"x:", "x:a", false},
	} {
		if got := IsPartOf(c.uri, c.whole); got != c.want {
			t.Errorf("%s of %s: %v", c.uri, c.whole, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		whole := rapid.String().Draw(t, "whole")
		if IsPartOf(whole, whole) || !IsPartOf(whole+"/x", whole) {
			t.Error(whole)
		}
	})
}
