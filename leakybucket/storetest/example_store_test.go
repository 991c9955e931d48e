package storetest_test

import (
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest"
)

// It stands beside the example's file, because go doc shows a file whole if no test is in it.
func TestTheStoreOfTheExample(t *testing.T) { storetest.Run(t, openMapStore) }
