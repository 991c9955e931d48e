package memstore

import (
	"syscall"
	"time"
	"unsafe"
)

// cpuTime returns how long this thread has run. Time that the machine gave to others
// meanwhile is not in it.
func cpuTime() time.Duration {
	const threadClock = 3 // CLOCK_THREAD_CPUTIME_ID
	var ts syscall.Timespec
	_, _, _ = syscall.Syscall(syscall.SYS_CLOCK_GETTIME, threadClock, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano())
}
