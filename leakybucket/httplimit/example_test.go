package httplimit_test

import (
	"fmt"
	"net/http"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/httplimit"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// Each address may send 20 requests at once, then two a second.
func Example() {
	limiter, err := leakybucket.NewLimiter(memstore.New(memstore.Options{}), leakybucket.Limit{Capacity: 20, Leak: 2}, leakybucket.LimiterOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := httplimit.New(limiter, httplimit.Options{}, http.FileServer(http.Dir("public")))
	_ = http.ListenAndServe("127.0.0.1:8080", handler)
}
