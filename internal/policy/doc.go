// Package policy decides whether a call may run: rules in, a decision out. It
// is pure: no NATS, no goroutine, no clock, no I/O.
//
//	Spec ── Compile ──► Policy ── Decide(Input) ──► Decision{allow | ask | deny, rule, reason}
//
// Rules are globs over "server/tool" with the server's own tool name, over
// "server/resource:URI" in any spelling of the URI, and over "server/prompt:NAME",
// each with an optional condition in CEL. The decision (P3):
//
//  1. A deny rule that matches wins.
//  2. Else the most specific of the ask and allow rules that match: one with
//     a condition over one without, then the longer literal server part, then
//     the longer literal tool part; ask where an ask and an allow rule tie.
//  3. Else the policy's default; without one, ask if there is an approver and
//     deny if not.
//
// A condition that cannot be evaluated counts as true in a deny or ask rule and
// as false in an allow rule, so that a mistake never lets a call through.
package policy
