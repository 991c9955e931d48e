package changes

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/snapshot"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// On a disk that hangs, which a pipe without a reader stands for, a ban holds, and is said not to be
// kept. Status, the journal, reloads and polls do not wait, and the file is written once the disk is back.
func TestADiskThatHangsKeepsNobodyWaiting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "changes.json")
	n := &node{Copy: New(), link: &link{server: newServer(), cut: true}, t: t}
	n.Use(n.link, path, zap.NewNop(), nil)
	check.OK(t, syscall.Mkfifo(path+".new", 0o600))
	told := n.change(banOf(robber, time.Hour, "alice"), false)
	check.That(t, !told.Kept, "got %+v, want a ban that is not kept", told)
	want(t, []*node{n}, robber, "alice")
	check.Equal(t, n.State().Pending, 1, "changes that the store lacks")
	check.Equal(t, len(n.Journal()), 1, "lines of the journal")
	n.Use(&link{server: n.link.server}, path, zap.NewNop(), nil)
	done := n.talk()
	check.That(t, n.poll(), "got no answer of the store, want one")
	done()
	check.Equal(t, len(n.link.backup().texts), 1, "changes that the store has")
	n.mu.Lock()
	written := n.disk.writing
	n.mu.Unlock()
	disk, err := os.Open(path + ".new")
	check.OK(t, err)
	<-written // with an error, since a pipe cannot be synced
	check.OK(t, disk.Close())
	n.mu.Lock()
	n.write()
	written = n.disk.writing
	n.mu.Unlock()
	<-written
	kept, err := os.ReadFile(path)
	check.OK(t, err)
	check.Contains(t, string(kept), robber, "the file")
	check.OK(t, syscall.Mkfifo(path+".new", 0o600))
	n.mu.Lock()
	n.save()
	written = n.disk.writing
	n.mu.Unlock()
	n.Close() // does not wait either, but others may have the file only once it is no longer being written
	_, err = snapshot.Open(path)
	check.That(t, err != nil, "got the file while it is being written")
	disk, err = os.Open(path + ".new")
	check.OK(t, err)
	<-written
	n.mu.Lock() // until it is closed
	defer n.mu.Unlock()
	check.OK(t, disk.Close())
	next, err := snapshot.Open(path)
	check.OK(t, err)
	next.Close()
}
