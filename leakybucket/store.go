package leakybucket

import "context"

// A Store keeps buckets and decides charges on its own clock. It is safe for
// concurrent use.
type Store interface {
	// Take decides all charges and pours all or none of them, in one atomic step
	// on the store's clock. It writes one decision for each charge. The slice
	// decisions must be as long as charges.
	//
	// If one enforced charge does not fit, nothing is poured anywhere. If one shadow
	// charge does not fit, no shadow charge is poured. Several charges may name the
	// same bucket, with the same limit, debt and block. Each of them is judged with
	// the sum of their costs.
	//
	// A charge that overflows begins a block of its bucket if its Block is set
	// and none runs, whatever becomes of the others. A charge that could never
	// fit begins none.
	//
	// Limits are not validated. Under one that [Limit.Validate] refuses, such as the
	// zero Limit, the decisions mean nothing.
	//
	// It is not an error if a charge does not fit. After an error the decisions
	// are meaningless, and the charges may or may not have been poured. The store
	// never repeats a call that may have been executed.
	//
	// A store that stands in for a shared one may change charges[i].Limit, Cost and Debt
	// to this node's share. Settle the charges as Take has left them. Apart from that, it
	// keeps no reference to its arguments after it has returned, whatever became of ctx.
	Take(ctx context.Context, charges []Charge, decisions []Decision) error

	// Settle corrects charges in their order, each as [Settlement.Apply] does. It
	// need not be one atomic step. If a bucket is no longer kept, a settlement
	// that pours creates it, and one that gives back does not.
	//
	// Each charge may be settled once, and the caller sees to that. After an
	// error it is not known which were settled, and none may be settled again. It keeps no
	// reference to its arguments either.
	Settle(ctx context.Context, settlements []Settlement) error
}
