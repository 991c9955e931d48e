// Package storetest is what every [leakybucket.Store] must pass, and how they
// are compared.
//
// A store's own test is one line for each:
//
//	func TestStore(t *testing.T)      { storetest.Run(t, open) }
//	func BenchmarkTake(b *testing.B)  { storetest.Benchmark(b, open) }
//
// The cases know a store by the contract alone, so that one which keeps its
// buckets elsewhere is held to the same as one that keeps them in memory.
package storetest

import (
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Need says what a case needs of the store it is given.
type Need struct {
	// MaxBuckets is how many buckets the store must hold, and where it must
	// begin to drop some. 0: as many as it likes. A store without a bound
	// ignores it.
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

// Run runs every case, each on a store of its own. With -short there is less
// of the same.
func Run(t *testing.T, open Open) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t, open) })
	}
}

type testCase struct {
	name string
	run  func(testing.TB, Open)
}

// cases is what Run runs. They take a testing.TB so that the test of this
// package can watch them fail.
var cases = []testCase{
	{"worked example", workedExample},
	{"exact fill fits", exactFill},
	{"cost 0 fits unless full", zeroCost},
	{"oversize cost never fits", oversizeCost},
	{"cost that is no amount never fits", impossibleCost},
	{"waiting as told is enough and needed", waitingAsTold},
	{"changed limit keeps the level", changedLimit},
	{"changed leak does not count backwards", changedLeak},
	{"changed leak is written when it is asked", changedLeakAsked},
	{"changed leak is written when it is settled", changedLeakSettled},
	{"changed leak is written when a block begins", changedLeakBlocks},

	{"clock a little back", clockLittleBack},
	{"clock far back", clockFarBack},
	{"clock far back with a full bucket", clockFarBackFull},

	{"all or none", allOrNone},
	{"same bucket twice", sameBucketTwice},
	{"many charges", manyCharges},
	{"keys are bytes", keysAreBytes},
	{"cancelled context", cancelledContext},

	{"shadow refuses nobody", shadowRefusesNobody},
	{"shadow is not poured beside a refusal", shadowBesideRefusal},
	{"shadow has buckets of its own", shadowOwnBuckets},

	{"probe pours nothing", probePoursNothing},
	{"probe refuses what is beside it", probeBeside},
	{"shadow probe refuses nobody", shadowProbe},

	{"settled upwards", settledUp},
	{"settled upwards in a bucket that is gone", settledUpGone},
	{"debt makes no room", debtNoRoom},
	{"settled downwards", settledDown},
	{"settled downwards in a bucket that is gone", settledDownGone},
	{"what was not poured is not given back", settledUnpoured},
	{"settled by what is no amount", settledByNoAmount},
	{"settled with a changed limit", settledChangedLimit},
	{"several settled together", settledTogether},
	{"shadow is settled apart", shadowSettled},
	{"settled with a cancelled context", settledCancelled},
	{"settled with the clock a little back", settledClockLittleBack},
	{"settled with the clock far back", settledClockFarBack},
	{"clock far back with a bucket in debt", clockFarBackInDebt},

	{"overflow begins a block", overflowBlocks},
	{"what never fits never blocks", neverFitsNeverBlocks},
	{"ladder climbs", ladderClimbs},
	{"block until empty", blockUntilEmpty},
	{"without a block none is heeded", withoutBlock},
	{"changed ladder", changedLadder},
	{"clock back while a block runs", blockAndClockBack},
	{"each of many blocks its own bucket", eachBlocksItsOwn},
	{"blocked bucket beside others", blockedBesideOthers},
	{"block of the same bucket twice", blockOfOneBucketTwice},
	{"shadow blocks apart", shadowBlocks},
	{"probe begins a block", probeBlocks},
	{"settling neither blocks nor unblocks", settlingKeepsBlocks},

	{"delays", delays},
	{"ceilings", ceilings},
	{"overflow of a ceiling begins a block", ceilingBlocks},

	{"cancelled charge gives all back", cancelled},
	{"cancelled to the last digit", cancelledExactly},
	{"cancelled after others came", cancelledTooLate},
	{"several cancelled together", cancelledTogether},
	{"cancelled without a pour", cancelledNothing},

	{"reset forgets level, block and step", resetForgets},
	{"reset of one bucket", resetOne},

	{"model", model},

	{"fresh keys under contention", freshKeys},
	{"all or none under contention", allOrNoneContended},
	{"bound on one key", boundOneKey},
	{"bound on several keys", boundSeveralKeys},
	{"bound on keys taken together", boundTogether},
	{"settled under contention", settledContended},
	{"bound on what is settled", boundSettled},
	{"blocks under contention", blocksContended},

	{"nothing live is forgotten", nothingLiveForgotten},
	{"nothing live under a changed leak is forgotten", changedLeakKept},
	{"counts its buckets", countsBuckets},
	{"drained buckets disappear", drainedDisappear},
	{"drops empty buckets before live ones", dropsEmptyFirst},
	{"full of live buckets", fullOfLive},
	{"nothing in debt is forgotten", nothingInDebtForgotten},
	{"given back buckets disappear", givenBackDisappear},
	{"drops what was given back before live ones", dropsGivenBackFirst},
	{"drops what was settled upwards last", dropsLiftedLast},
	{"nothing blocked is forgotten", nothingBlockedForgotten},
	{"blocked buckets disappear", blockedDisappear},
	{"drops blocked buckets last", dropsBlockedLast},
}
