//go:build race

package integration_test

// The programs under test are built as the tests are.
var buildFlags = []string{"-race"}
