package httplimit_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

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
	limited := httplimit.Middleware(limiter, httplimit.Options{})
	log.Fatal(http.ListenAndServe(":8080", limited(http.FileServer(http.Dir("public")))))
}

// Customers are known by a key, and have the limit of their plan. Everybody else is known by the
// address. Routers such as chi take the middleware by router.Use(limited).
func ExampleOptions() {
	free, err := leakybucket.ParseLimit("10 10/h")
	if err != nil {
		log.Fatal(err)
	}
	plans := map[string]leakybucket.Limit{"secret-1": {Capacity: 100, Leak: 20}}

	limiter, err := leakybucket.NewLimiter(memstore.New(memstore.Options{}), free, leakybucket.LimiterOptions{Zone: "api"})
	if err != nil {
		log.Fatal(err)
	}
	byKey := httplimit.ByHeader("X-Api-Key", httplimit.ByAddress)
	limited := httplimit.Middleware(limiter, httplimit.Options{
		Key: func(r *http.Request) string {
			if _, known := plans[r.Header.Get("X-Api-Key")]; known {
				return byKey(r)
			}
			return httplimit.ByAddress(r) // or each made-up key would have a full bucket
		},
		Limit:  func(r *http.Request) leakybucket.Limit { return plans[r.Header.Get("X-Api-Key")] },
		Policy: "plan",
	})
	api := limited(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") }))

	for _, key := range []string{"secret-1", "", "made-up"} {
		served := 0
		for range 50 {
			w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
			r.Header.Set("X-Api-Key", key)
			if api.ServeHTTP(w, r); w.Code == http.StatusOK {
				served++
			}
		}
		fmt.Printf("key %q: %d of 50 served\n", key, served)
	}
	// Output:
	// key "secret-1": 50 of 50 served
	// key "": 10 of 50 served
	// key "made-up": 0 of 50 served
}
