package overridefile

import (
	"io/fs"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A mount is a disk that can stop answering.
type mount struct {
	disk
	gone  chan struct{} // closed when it answers again; nil if it answers
	calls atomic.Int32  // that hang, or have hung
}

func (m *mount) Stat(name string) (fs.FileInfo, error) {
	if m.gone != nil {
		m.calls.Add(1)
		<-m.gone
	}
	return m.disk.Stat(name)
}

func TestAFileSystemThatDoesNotAnswerIsAProblemUntilItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, m := watch(t, "a deny\n"), &mount{gone: make(chan struct{})}
		w.System = m
		for _, first := range []bool{true, false} {
			began := time.Now()
			news, s := w.Look(nil)
			if news != first || s.Problem == nil || !strings.Contains(s.Problem.Error(), "does not answer") || s.Overrides != 1 {
				t.Errorf("got %v, %+v, want the problem once, and the old set", news, s)
			}
			if waited := time.Since(began); waited != 10*time.Second {
				t.Errorf("waited %v, want 10 s", waited)
			}
		}
		if n := m.calls.Load(); n != 1 {
			t.Errorf("got %d calls that hang, want one", n)
		}
		close(m.gone)
		if news, s := w.Look(nil); !news || s.Problem != nil {
			t.Errorf("got %v, %+v, want the end of the problem as news", news, s)
		}
		m.gone = nil
		w.writes("b deny\nc deny\n")
		w.looks("b", "")
	})
}

// A file that was wrong before is wrong afterwards.
func TestTheProblemWithAFileOutlastsAHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, m := watch(t, "a deny\n"), new(mount)
		w.System = m
		w.writes("b unknown\n")
		w.looks("a", "unknown plan")
		m.gone = make(chan struct{})
		w.looks("a", "does not answer")
		close(m.gone)
		w.looks("a", "unknown plan")
	})
}

func TestStatusDoesNotWaitForALookThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, m := watch(t, "a deny\n"), &mount{gone: make(chan struct{})}
		w.System = m
		stop := make(chan struct{})
		go w.Look(stop)
		synctest.Wait() // the look hangs
		began := time.Now()
		if s := w.Status(); s.Overrides != 1 || s.Problem != nil || !time.Now().Equal(began) {
			t.Errorf("got %+v after %v, want the set in use at once", s, time.Since(began))
		}
		close(stop)
		synctest.Wait() // the look has returned
		close(m.gone)
	})
}

// Configs come and go while a mount hangs. Nothing ends the one call that does.
func TestAHangCostsOneGoroutineHoweverOftenTheFileIsLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, m := watch(t, "a deny\n"), &mount{gone: make(chan struct{})}
		w.System = m
		stop := make(chan struct{})
		w.Look(stop)
		close(stop)
		synctest.Wait()
		before := runtime.NumGoroutine()
		for range 20 {
			next := File{Path: w.Path, Use: w.Use, System: m}
			if err := next.Load(); err == nil || !strings.Contains(err.Error(), "does not answer") {
				t.Fatalf("got %v, want that the file system does not answer", err)
			}
		}
		synctest.Wait()
		if n := m.calls.Load(); n != 1 {
			t.Errorf("got %d calls that hang, want one", n)
		}
		if more := runtime.NumGoroutine() - before; more > 0 {
			t.Errorf("got %d goroutines more, want none", more)
		}
		close(m.gone)
		synctest.Wait()
		if err := w.Load(); err != nil {
			t.Errorf("got %v once it answers, want none", err)
		}
	})
}
