//go:build !amd64 || !gc || purego

package memstore

func prefetch(*shard, uint64) {}
