package redisstore

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// errClosed is returned for every call after [Store.Close].
var errClosed = errors.New("the store is closed")

const rights = "the user needs ~<prefix>* and +eval +evalsha +get +set +del +hget +hset +hdel +hlen +hexists +hscan +scan +time +info +role +select"

// advice says how to mend an error, by the beginning of the server's reply.
var advice = []struct{ begins, advice string }{
	{"OOM", "raise its maxmemory, or let it evict by volatile-ttl"},
	{"READONLY", "it is a replica: want the master's address, or redis+sentinel://"},
	{"LOADING", "it is reading its data set from disk: it answers once that is done"},
	{"MASTERDOWN", "it is a replica: want the master's address, or redis+sentinel://"},
	{"NOREPLICAS", "min-replicas-to-write is not met: bring its replicas back"},
	{"MISCONF", "it cannot save its data set and takes no writes: see its log"},
	{"CLUSTERDOWN", "a part of the cluster has no master: bring it back, or set cluster-require-full-coverage no"},
	{"MOVED", "want redis+cluster://, or the nodes of the cluster do not agree"},
	{"TRYAGAIN", "a slot of the cluster is moving: takes may fail until that is done"},
	{"NOAUTH", "want a password"},
	{"WRONGPASS", "the user or the password is wrong"},
	{"NOPERM", rights},
	{"The user executing the script can't", rights},
	{"WRONGTYPE", "somebody else has written the key: delete it, or use another prefix"},
	{"unknown command", "want Redis 6.2 or later, or Valkey, with no commands renamed"},
}

// explain adds to an error what was done, the servers it came from and how to mend it, and
// redacts its text. It returns nil for nil.
func (c *connection) explain(doing string, err error) error {
	if err == nil {
		return nil
	}
	hint := ""
	if answer := (*rueidis.RedisError)(nil); errors.As(err, &answer) {
		for _, a := range advice {
			if isOf(answer, a.begins) {
				hint = ": " + a.advice
				break
			}
		}
	}
	return fmt.Errorf("%s: %s: %w%s", doing, c.target, c.redact(err), hint)
}

// isOf reports whether an error of a server begins so. Before Redis 7, one of a script begins with
// where the script stood, and has a minus sign then.
func isOf(e *rueidis.RedisError, begins string) bool {
	text := strings.ReplaceAll(e.Error(), ": -", ": ")
	return strings.HasPrefix(text, begins) || strings.Contains(text, ": "+begins)
}

// redact returns an error whose text shows neither passwords nor the arguments
// of a command, which hold clients' keys.
func (c *connection) redact(err error) error {
	text := err.Error()
	if answer := (*rueidis.RedisError)(nil); errors.As(err, &answer) {
		text, _, _ = strings.Cut(text, ", with args")
	}
	for _, secret := range c.secrets {
		text = strings.ReplaceAll(text, secret, "***")
		quoted := strconv.Quote(secret)
		text = strings.ReplaceAll(text, quoted[1:len(quoted)-1], "***")
	}
	if text == err.Error() {
		return err
	}
	return &redacted{text, err}
}

// redacted is an error with another text. errors.Is and errors.As see the whole
// tree below it. It has no Unwrap, so that nothing that walks the tree and
// prints it shows the original text.
type redacted struct {
	text string
	err  error
}

func (r *redacted) Error() string        { return r.text }
func (r *redacted) GoString() string     { return strconv.Quote(r.text) }
func (r *redacted) Is(target error) bool { return errors.Is(r.err, target) }
func (r *redacted) As(target any) bool   { return errors.As(r.err, target) }
