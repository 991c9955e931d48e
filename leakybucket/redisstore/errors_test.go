package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// The password may also be a word of our own text, such as "reading".
func TestABadKeyIsAFaultOfItsBucketWhateverThePassword(t *testing.T) {
	server := servertest.StartRedis(t, "--requirepass", "reading")
	s := open(t, "redis://:reading@"+server.Addr, Options{Prefix: "p:"})
	mustTake(t, s, charge("sound", frozen, 1))
	if out, err := server.Try("-a", "reading", "set", "p:zone/bad", "no bucket"); err != nil {
		t.Fatal(out, err)
	}
	_, err := takeWithin(s, charge("bad", frozen, 1), patience)
	errSettle := s.Settle(context.Background(), []leakybucket.Settlement{{Charge: charge("bad", frozen, 1), Diff: 1}})
	for _, err := range []error{err, errSettle} {
		if !errors.Is(err, store.ErrBadBucket) {
			t.Errorf("got %v, want ErrBadBucket in its tree", err)
		}
		if err != nil && strings.Contains(err.Error(), "reading") {
			t.Errorf("got %v, want no password in it", err)
		}
	}
}

func TestRedactionKeepsTheTreeOfAnError(t *testing.T) {
	const quoted = "s3\"cret"
	c := &connection{secrets: []string{"hunter2", quoted}}
	dial := &net.OpError{Op: "dial", Err: fmt.Errorf("hunter2 at %w", io.ErrUnexpectedEOF)}
	for _, err := range []error{
		fmt.Errorf("connecting with hunter2: %w", dial),
		errors.Join(errors.New("hunter2"), fmt.Errorf("asking %q: %w", quoted, dial)),
		fmt.Errorf("nothing to hide: %w", errors.Join(dial)),
	} {
		shown := fmt.Errorf("taking: %w", c.redact(err))
		var op *net.OpError
		if !errors.Is(shown, io.ErrUnexpectedEOF) || !errors.As(shown, &op) || op != dial {
			t.Errorf("%v: got a tree without its errors", shown)
		}
		if errors.Is(shown, io.EOF) {
			t.Errorf("%v: got io.EOF in its tree", shown)
		}
		for _, text := range texts(shown) {
			if strings.Contains(text, "hunter2") || strings.Contains(text, "cret") {
				t.Errorf("got %q, want no password", text)
			}
		}
	}
	if err := errors.New("plain"); c.redact(err) != err {
		t.Error("error without a secret: got another one")
	}
}

// texts returns everything that can be printed of an error and of those it
// unwraps to.
func texts(err error) []string {
	all := []string{err.Error(), fmt.Sprintf("%v", err), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err), fmt.Sprintf("%q", err)}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			all = append(all, texts(inner)...)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			all = append(all, texts(inner)...)
		}
	}
	return all
}
