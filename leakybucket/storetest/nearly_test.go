package storetest

import (
	"context"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

type misspelled struct{ leakybucket.Store }

func (misspelled) Reset(context.Context, string, string) error { return nil }

func (misspelled) Texts(context.Context, int64) (store.Texts, error) {
	return store.Texts{}, nil
}

func TestAMethodThatNobodyWouldCallIsToldOf(t *testing.T) {
	problems := strings.Join(nearly(misspelled{}), "\n")
	for _, want := range []string{
		"storetest.misspelled is no store.Resetter: its method Reset is a func(context.Context, string, string) error, want a func(context.Context, string, string, bool) error",
		"storetest.misspelled has the method Texts of store.Registry, and not its others",
	} {
		if !strings.Contains(problems, want) {
			t.Errorf("got %q, want %q", problems, want)
		}
	}
	store, _ := openReference(bugs{})(t, Need{})
	if problems := nearly(store); len(problems) > 0 {
		t.Errorf("got %q, want nothing about a store that is whole", problems)
	}
}
