package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// toxics is a proxy before a store that simulates a bad network.
type toxics struct {
	t       *testing.T
	proxy   *toxiproxy.Proxy
	address string
}

func startToxics(t *testing.T, upstream string) *toxics {
	t.Helper()
	api := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	proxy := toxiproxy.NewProxy(api, "store", "127.0.0.1:0", upstream)
	if err := proxy.Start(); err != nil {
		t.Fatalf("starting a proxy: %v", err)
	}
	t.Cleanup(proxy.Stop)
	return &toxics{t: t, proxy: proxy, address: proxy.Listen}
}

// poison disturbs the store's answers with a toxic until cure is called. Kinds
// and attributes are those of toxiproxy.
func (x *toxics) poison(kind, attributes string) (cure func()) {
	x.t.Helper()
	text := fmt.Sprintf(`{"name":"toxic","type":%q,"stream":"downstream","attributes":{%s}}`, kind, attributes)
	if _, err := x.proxy.Toxics.AddToxicJson(strings.NewReader(text)); err != nil {
		x.t.Fatalf("adding the toxic %s: %v", kind, err)
	}
	return func() {
		if err := x.proxy.Toxics.RemoveToxic(context.Background(), "toxic"); err != nil {
			x.t.Errorf("removing the toxic %s: %v", kind, err)
		}
	}
}
