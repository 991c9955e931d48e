package servertest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

const (
	firstPort = 12_000
	block     = 50
	blocks    = 200 // so that all ports lie below those of outgoing connections

	// bus is how far above its port a node of a Redis Cluster uses another one.
	bus = block * blocks
)

// ports are what is left of the block that was claimed last.
var ports struct {
	sync.Mutex
	next, end int
	held      []net.Listener // on the first port of each block
}

// FreePort returns a TCP port of 127.0.0.1 that no other test gets. It is of a block of ports,
// on the first of which this process listens until it ends. The port 10,000 above belongs to it.
func FreePort(tb testing.TB) int {
	tb.Helper()
	port, err := freePort()
	if err != nil {
		tb.Fatal(err)
	}
	return port
}

func freePort() (int, error) {
	ports.Lock()
	defer ports.Unlock()
	for {
		for ports.next < ports.end {
			port := ports.next
			ports.next++
			if free(port) && free(port+bus) { // or a server is left of a test that was killed
				return port, nil
			}
		}
		if !claimBlock() {
			return 0, errors.New("got all blocks of ports held by other tests, want one that is free")
		}
	}
}

func claimBlock() bool {
	from := rand.IntN(blocks)
	for n := range blocks {
		first := firstPort + (from+n)%blocks*block
		if listener, err := listen(first); err == nil {
			ports.held = append(ports.held, listener)
			ports.next, ports.end = first+1, first+block
			return true
		}
	}
	return false
}

func free(port int) bool {
	listener, err := listen(port)
	return err == nil && listener.Close() == nil
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
}
