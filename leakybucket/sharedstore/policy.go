package sharedstore

import (
	"fmt"
	"slices"
)

// A Policy is what a zone does when the shared store does not answer.
type Policy uint8

const (
	// Local charges buckets of this node's own, with this node's share of the
	// limit. The charge is left as that share, see [leakybucket.Store].
	Local Policy = iota

	// Allow lets every request pass that no known block refuses.
	Allow

	// Deny refuses every request.
	Deny
)

var policyNames = [...]string{Local: "local", Allow: "allow", Deny: "deny"}

// ParsePolicy returns the policy of a name: local, allow or deny.
func ParsePolicy(name string) (Policy, error) {
	i := slices.Index(policyNames[:], name)
	if i < 0 {
		return 0, fmt.Errorf("invalid policy %q: want local, allow or deny", name)
	}
	return Policy(i), nil
}

// String returns the name that ParsePolicy takes.
func (p Policy) String() string { return policyNames[p] }
