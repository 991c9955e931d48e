package redisstore

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redis/rueidis"
)

// advice says what to do about what a server answers, by how its answer begins.
var advice = []struct{ begins, advice string }{
	{"OOM", "raise its maxmemory, or let it evict by volatile-ttl"},
	{"READONLY", "it is a replica: want the master's address, or redis+sentinel://"},
	{"LOADING", "it reads its data set from disk and will answer once it has"},
	{"MASTERDOWN", "it is a replica: want the master's address, or redis+sentinel://"},
	{"NOREPLICAS", "min-replicas-to-write is not met: bring its replicas back"},
	{"MISCONF", "it cannot save its data set and takes no writes: see its log"},
	{"CLUSTERDOWN", "a part of the cluster has no master: bring it back, or set cluster-require-full-coverage no"},
	{"MOVED", "it is one of a cluster whose nodes do not agree, or want redis+cluster://"},
	{"NOAUTH", "it wants a password"},
	{"WRONGPASS", "user or password are wrong"},
	{"NOPERM", "the user needs ~<prefix>* and +eval +evalsha +get +set +del +time +info"},
	{"unknown command", "it is no Redis 6.2 or later, nor a Valkey, or commands were renamed"},
}

// explain returns an error with the servers it came from and what to do about
// it, and without a password.
func (l *link) explain(err error) error {
	hint := ""
	if answer := (*rueidis.RedisError)(nil); errors.As(err, &answer) {
		for _, a := range advice {
			if strings.HasPrefix(answer.Error(), a.begins) {
				hint = ": " + a.advice
				break
			}
		}
		if text, _, long := strings.Cut(err.Error(), ", with args"); long { // keys and more
			err = errors.New(text)
		}
	}
	for _, secret := range l.secrets {
		if text := err.Error(); strings.Contains(text, secret) {
			err = errors.New(strings.ReplaceAll(text, secret, "***"))
		}
	}
	return fmt.Errorf("%s: %w%s", l.target, err, hint)
}
