package httplimit_test

import (
	"log"
	"net/http"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/httplimit"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// Each client may send ten requests at once, then two a second.
func Example() {
	store := memstore.New(memstore.Options{}) // 500,000 clients at most, in 50 MB
	limiter, err := leakybucket.NewLimiter(store, leakybucket.Limit{Capacity: 10, Leak: 2}, leakybucket.LimiterOptions{})
	if err != nil {
		log.Fatal(err)
	}
	handler := http.FileServer(http.Dir("public"))
	log.Fatal(http.ListenAndServe(":8080", httplimit.New(limiter, httplimit.Options{}, handler)))
}
