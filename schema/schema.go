// Package schema holds the JSON Schemas that Toolhub publishes.
//
//	hub.schema.json     configuration files, for completion and checks in editors
//	event.schema.json   events, the JSON that goes over NATS (docs/events.md)
//
// They are generated from the types and comments of internal/config, whose
// tests keep the two equal.
package schema

import _ "embed"

// Hub is the schema of a hub's configuration file.
//
//go:embed hub.schema.json
var Hub []byte

// Event is the schema of an event.
//
//go:embed event.schema.json
var Event []byte
