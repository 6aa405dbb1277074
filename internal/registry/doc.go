// Package registry is the hub's shared state in JetStream KV, typed: what is
// defined, who owns which server, in what state it is, and what it lists.
//
//	bucket defs   settings          Settings            written by Apply
//	              server.<id>       Definition          written by Apply
//	bucket reg    lease.<w>.<inc>   a worker's life     written by its Lease
//	              own.<id>          Own; its revision is the epoch
//	              status.<id>.<w>   Status              fenced by the epoch
//	              cat.<id>          catalog manifest    fenced by the epoch
//	              part.<hash>       a piece of a large catalog
//
// A [Registry] watches all of it and holds one immutable [View] behind an
// atomic pointer: readers never wait and never see half of a catalog. Writes go
// straight to the bucket and come back through the watch. Every write of an
// owner is conditional, in the NATS server, on its own.<id> revision, so that
// an owner that lost a server cannot overwrite what its successor says.
//
// Routers and workers share nothing but this package and the bus.
package registry
