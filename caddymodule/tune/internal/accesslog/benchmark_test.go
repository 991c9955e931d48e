package accesslog

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// A benchmark's log, of this many lines.
const benchLines = 20_000

func BenchmarkRead(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	var caddy, combined strings.Builder
	at := noon
	for range benchLines {
		at = at.Add(time.Duration(rng.ExpFloat64() * float64(20*time.Millisecond)))
		ip := fmt.Sprintf("203.0.%d.%d", rng.IntN(40), rng.IntN(250))
		caddy.WriteString(caddyLine(at, time.Duration(rng.ExpFloat64()*float64(100*time.Millisecond)), ip, fmt.Sprintf("/index.php?page=%d", rng.IntN(1000))) + "\n")
		combined.WriteString(combinedLine(at, ip, fmt.Sprintf("/index.php?page=%d", rng.IntN(1000))) + "\n")
	}
	for name, text := range map[string]string{"caddy": caddy.String(), "combined": combined.String()} {
		b.Run("format="+name, func(b *testing.B) {
			b.SetBytes(int64(len(text) / benchLines))
			b.ReportAllocs()
			for n := 0; n < b.N; {
				r, err := Open([]string{"-"}, Options{Stdin: strings.NewReader(text)})
				if err != nil {
					b.Fatal(err)
				}
				for batch, err := range r.Batches(b.Context()) {
					if n += len(batch); err != nil {
						b.Fatal(err)
					}
				}
				r.Close()
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "lines/s")
		})
	}
}
