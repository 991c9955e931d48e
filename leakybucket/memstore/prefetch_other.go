//go:build !amd64

package memstore

func prefetch(*shard, uint64) {}
