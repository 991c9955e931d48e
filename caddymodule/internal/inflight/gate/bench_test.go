package gate

import (
	"fmt"
	"testing"
)

func BenchmarkEnter(b *testing.B) {
	for _, share := range []bool{false, true} {
		for _, key := range []string{"", "203.0.113.7"} {
			if share && key != "" {
				continue
			}
			b.Run(fmt.Sprintf("share=%v/key=%v", share, key != ""), func(b *testing.B) {
				g, ctx, exiting := new(Gate), b.Context(), make(chan struct{})
				l := Limits{Slots: 100, Share: share}
				b.ReportAllocs()
				for b.Loop() {
					r := Request{Key: key}
					r.Keys[0] = "203.0.113.7"
					s, _ := g.Enter(ctx, exiting, l, &r)
					s.Release(true)
				}
			})
		}
	}
}
