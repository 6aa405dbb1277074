package main

import (
	"errors"
	"fmt"

	"toolhub/internal/config"
	"toolhub/schema"
)

// checkCmd is `hub config check`.
type checkCmd struct {
	File string `arg:"" type:"path" help:"Configuration file."`
	JSON bool   `help:"Print the problems as JSON, an empty list if there are none."`
}

// Run reports all that is wrong with the file.
func (k *checkCmd) Run(c *console) error {
	file, err := loadConfig(k.File)
	if e, ok := errors.AsType[*config.Error](err); k.JSON && (ok || err == nil) {
		problems := []config.Problem{}
		if ok {
			problems = e.Problems
		}
		if err := c.json(problems); err != nil {
			return err
		}
		if ok {
			return reported{exitUsage}
		}
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(c.out, "%s: hub %s with %s holds\n", k.File, file.Hub, count(len(file.Servers), "server"))
	return nil
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// schemaCmd is `hub config schema`.
type schemaCmd struct{}

// Run prints the schema.
func (schemaCmd) Run(c *console) error {
	_, err := c.out.Write(schema.Hub)
	return err
}
