// Package storetest holds every [leakybucket.Store] to the contract, and measures
// them alike.
//
// A store's own test is one line for each:
//
//	func TestStore(t *testing.T)      { storetest.Run(t, open) }
//	func BenchmarkTake(b *testing.B)  { storetest.Benchmark(b, open) }
//
// The cases use nothing but the contract, so a store that keeps its buckets on
// another machine is held to the same as one that keeps them in memory. The
// table of cases is in storetest.go: each belongs to one [Promise]. The tests of
// this package show for each case a faulty store that it catches.
package storetest

import (
	"slices"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Promise is a part of the contract. Most of the cases of a promise are in the
// file that its comment names.
type Promise string

// The promises that a store makes.
const (
	// Costs that fit are poured exactly, and nothing else is. See amounts.go.
	Amounts Promise = "exact amounts"
	// A charge with a ceiling fits below it.
	Ceilings Promise = "ceilings"
	// A changed capacity or leak counts from now on, never backwards. See leak.go.
	ChangedLimits Promise = "changed limits"
	// A clock that was set back frees nobody and locks nobody out. See clock.go.
	Clocks Promise = "clocks set back"
	// All charges of a take are poured, or none. See together.go.
	Together Promise = "charges taken together"
	// Two names are never the same bucket.
	Names Promise = "names of any bytes"
	// Shadow charges refuse nobody.
	Shadow Promise = "shadow charges"
	// Probes ask and pour nothing.
	Probes Promise = "probes"
	// Charges are corrected up and down, within their debt. See settle.go.
	Settlement Promise = "settlements"
	// A cancelled charge is given back if nothing came after it.
	Cancellation Promise = "cancellations"
	// Overflows block a bucket, step by step. See block.go.
	Blocks Promise = "blocks"
	// However many callers there are, each bucket keeps its bound. See bound.go.
	Bound Promise = "the bound under contention"
	// A take of several buckets is one atomic step, also beside others.
	Atomicity Promise = "atomic takes of several buckets"
	// Live and blocked buckets are kept, and drained ones disappear. See forget.go.
	Forgetting Promise = "forgetting"
	// A full store drops the buckets first that would be empty soonest.
	Eviction Promise = "eviction"
	// A bucket that is reset is as if new.
	Reset Promise = "resets"
	// All buckets of a zone are found. See list.go.
	Listing Promise = "listing"
	// Short texts are kept beside the buckets. See registry.go.
	Registries Promise = "the registry"
	// Every decision is the one of [store.TakeAll]. See model.go.
	Agreement Promise = "agreement with the model"
)

// Need says what a case needs of the store it is given.
type Need struct {
	// MaxBuckets is how many buckets the store must hold, and where it must begin
	// to drop some. If zero, as many as it likes. A store without a bound ignores
	// it.
	MaxBuckets int
}

// Open opens a fresh, empty store for one case, and closes it with tb.Cleanup.
//
// setClock puts the store's clock at an instant, earlier ones included, and
// holds it there until the next call. Until the first call the store runs on
// its own real clock. A store that forgets buckets by a clock which cannot be
// set, such as a Redis TTL, must keep them for some seconds longer: a case
// takes longer than the time that passes in it.
type Open func(tb testing.TB, need Need) (store leakybucket.Store, setClock func(leakybucket.Instant))

// Run runs every case, each on a store of its own. With -short there is less of
// the same. A store that does not make some of the promises says so, and their
// cases are skipped with a message.
//
// Cases of an optional interface, such as [store.Resetter], are skipped if the store is none. To
// be told of a method that differs, have `var _ store.Resetter = (*Store)(nil)` beside it.
func Run(t *testing.T, open Open, notPromised ...Promise) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if slices.Contains(notPromised, c.promise) {
				t.Skipf("not examined: the store does not promise %s", c.promise)
			}
			c.run(t, open)
		})
	}
}

type testCase struct {
	promise Promise
	name    string
	run     func(testing.TB, Open)
}

// cases is what Run runs. They take a testing.TB so that the test of this
// package can watch them fail.
var cases = []testCase{
	{Amounts, "worked example", workedExample},
	{Amounts, "exact fill fits", exactFill},
	{Amounts, "cost 0 fits unless full", zeroCost},
	{Amounts, "cost that is no amount never fits", impossibleCost},
	{Amounts, "waiting as told is enough and needed", waitingAsTold},

	{Ceilings, "delays", delays},
	{Ceilings, "ceilings", ceilings},
	{Ceilings, "overflow of a ceiling begins a block", ceilingBlocks},

	{ChangedLimits, "changed limit keeps the level", changedLimit},
	{ChangedLimits, "changed leak does not count backwards", changedLeak},
	{ChangedLimits, "changed leak is written when it is asked", changedLeakAsked},
	{ChangedLimits, "changed leak is written when it is settled", changedLeakSettled},
	{ChangedLimits, "changed leak is written when a block begins", changedLeakBlocks},
	{ChangedLimits, "nothing live under a changed leak is forgotten", changedLeakKept},

	{Clocks, "clock a little back", clockLittleBack},
	{Clocks, "clock far back", clockFarBack},
	{Clocks, "clock far back with a full bucket", clockFarBackFull},
	{Clocks, "settled with the clock a little back", settledClockLittleBack},
	{Clocks, "settled with the clock far back", settledClockFarBack},
	{Clocks, "clock far back with a bucket in debt", clockFarBackInDebt},

	{Together, "all or none", allOrNone},
	{Together, "same bucket twice", sameBucketTwice},
	{Together, "many charges", manyCharges},
	{Together, "cancelled context", cancelledContext},
	{Together, "arguments are the caller's again", argumentsReturned},

	{Names, "keys are bytes", keysAreBytes},

	{Shadow, "shadow refuses nobody", shadowRefusesNobody},
	{Shadow, "shadow is poured together", shadowTogether},
	{Shadow, "shadow is not poured beside a refusal", shadowBesideRefusal},

	{Probes, "probe pours nothing", probePoursNothing},
	{Probes, "probe refuses what is beside it", probeBeside},

	{Settlement, "settled upwards", settledUp},
	{Settlement, "settled upwards in a bucket that is gone", settledUpGone},
	{Settlement, "debt makes no room", debtNoRoom},
	{Settlement, "settled downwards", settledDown},
	{Settlement, "settled downwards in a bucket that is gone", settledDownGone},
	{Settlement, "what was not poured is not given back", settledUnpoured},
	{Settlement, "settled by what is no amount", settledByNoAmount},
	{Settlement, "settled with a changed limit", settledChangedLimit},
	{Settlement, "several settled together", settledTogether},
	{Settlement, "settled with a cancelled context", settledCancelled},
	{Settlement, "settled under contention", settledContended},

	{Cancellation, "cancelled charge gives all back", cancelled},
	{Cancellation, "cancelled to the last digit", cancelledExactly},
	{Cancellation, "cancelled after others came", cancelledTooLate},
	{Cancellation, "several cancelled together", cancelledTogether},
	{Cancellation, "cancelled without a pour", cancelledNothing},
	{Cancellation, "reservations wait and are given back", reservations},

	{Blocks, "overflow begins a block", overflowBlocks},
	{Blocks, "what never fits never blocks", neverFitsNeverBlocks},
	{Blocks, "ladder climbs", ladderClimbs},
	{Blocks, "block until empty", blockUntilEmpty},
	{Blocks, "without a block none is heeded", withoutBlock},
	{Blocks, "changed ladder", changedLadder},
	{Blocks, "clock back while a block runs", blockAndClockBack},
	{Blocks, "each of many blocks its own bucket", eachBlocksItsOwn},
	{Blocks, "block of the same bucket twice", blockOfOneBucketTwice},
	{Blocks, "shadow blocks apart", shadowBlocks},
	{Blocks, "probe begins a block", probeBlocks},
	{Blocks, "settling neither blocks nor unblocks", settlingKeepsBlocks},
	{Blocks, "blocks under contention", blocksContended},

	{Bound, "fresh keys under contention", freshKeys},
	{Bound, "bound on one key", boundOneKey},
	{Bound, "bound on several keys", boundSeveralKeys},
	{Bound, "bound on what is settled", boundSettled},

	{Atomicity, "all or none under contention", allOrNoneContended},
	{Atomicity, "bound on keys taken together", boundTogether},

	{Forgetting, "nothing live is forgotten", nothingLiveForgotten},
	{Forgetting, "counts its buckets", countsBuckets},
	{Forgetting, "drained buckets disappear", drainedDisappear},
	{Forgetting, "nothing in debt is forgotten", nothingInDebtForgotten},
	{Forgetting, "given back buckets disappear", givenBackDisappear},
	{Forgetting, "nothing blocked is forgotten", nothingBlockedForgotten},
	{Forgetting, "blocked buckets disappear", blockedDisappear},

	{Eviction, "drops empty buckets before live ones", dropsEmptyFirst},
	{Eviction, "full of live buckets", fullOfLive},
	{Eviction, "drops what was given back before live ones", dropsGivenBackFirst},
	{Eviction, "drops what was settled upwards last", dropsLiftedLast},
	{Eviction, "drops blocked buckets last", dropsBlockedLast},

	{Reset, "reset forgets level, block and step", resetForgets},
	{Reset, "reset of one bucket", resetOne},

	{Listing, "lists the buckets of a zone", listsZone},
	{Listing, "lists thousands of buckets", listsMany},
	{Listing, "lists while buckets come and go", listsInPages},
	{Listing, "refuses a cursor that is none", refusesCursors},

	{Registries, "texts by their numbers", highestStands},
	{Registries, "texts end", textsEnd},
	{Registries, "many texts", manyTexts},
	{Registries, "texts under contention", textsContended},

	{Agreement, "model", model},
}
