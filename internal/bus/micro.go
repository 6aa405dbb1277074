package bus

import "errors"

// Advertise makes c answer `nats micro` as the service name, for example
// toolhub-worker, with one endpoint for each [Service] of c. version is a
// semantic version. It ends with Close.
func (c *Conn) Advertise(name, version, description string) error { return errors.New("not yet") }
