package tests

import (
	"context"
	"net/http"
	"time"
)

// ask sends a request in the background until it is told to leave, and sends the
// answer to the channel.
func (v *visitor) ask(url string, answers chan<- answer) (leave context.CancelFunc) {
	ctx, leave := context.WithCancel(context.Background())
	go func() {
		defer leave()
		req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
		if err != nil {
			answers <- answer{body: err.Error()}
			return
		}
		a, err := v.do(req)
		if err != nil {
			a.body = err.Error()
		}
		answers <- a
	}()
	return leave
}

// known is how long Caddy may take to notice that a client has left, on a machine that does
// nothing else: asserted with TEST_LONG=1.
const known = 100 * time.Millisecond
