//go:build !amd64

package memstore

// prefetch does nothing: it is written for amd64 only.
func prefetch(*slot, *uint8, int) {}
