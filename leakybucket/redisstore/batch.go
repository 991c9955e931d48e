package redisstore

import (
	"errors"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/internal/coalesce"
)

// batching says how requests share calls. Each charge costs the server some
// microseconds in which it serves nobody else, so a call is bounded. A second
// call in flight keeps the server busy while we read the first reply. Others
// leave only when they are full, so that a slow network does not bound the rate.
var batching = coalesce.Options{MaxWeight: 64, MaxInFlight: 4, SecondWeight: 32}

// sendBatch runs a script once for all requests of a batch. Its error is in the reply of each.
func (s *Store) sendBatch(script *rueidis.Lua, batch []*request) {
	serial := strconv.FormatUint(s.serials.Add(1), 36)
	n := 0
	for _, r := range batch {
		n += len(r.keys)
	}
	keys, args := make([]string, 0, n), make([]string, 0, 2+2*n)
	args = append(args, serial, s.now())
	for _, r := range batch {
		keys, args = append(keys, r.keys...), append(args, r.args...)
	}
	text, err := s.connection.run(script, keys, args)
	lines := strings.Split(text, "\n")
	var at leakybucket.Instant
	if err == nil {
		at, err = parseHead(lines, serial, len(batch))
	}
	for i, r := range batch {
		if err != nil {
			r.reply = reply{err: err}
		} else {
			r.reply = reply{at: at, line: lines[i+1]}
		}
	}
}

// instantBits are those of an instant that a script can tell exactly, and whose nanoseconds fit an int64.
const instantBits = 53

// parseHead checks that a reply is to the call with this serial and has a line
// for each request, and returns its instant.
func parseHead(lines []string, serial string, requests int) (leakybucket.Instant, error) {
	name, instant, _ := strings.Cut(lines[0], " ")
	if name != serial || len(lines) != requests+1 {
		return 0, errGarbage
	}
	at, err := strconv.ParseUint(instant, 10, instantBits)
	if err != nil || at == 0 {
		return 0, errGarbage
	}
	return leakybucket.Instant(at), nil
}

// errGarbage does not quote the reply, which may hold anything.
var errGarbage = errors.New("the reply makes no sense: is this a Redis, and does nothing in between change its replies?")
