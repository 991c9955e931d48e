package redisstore

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts so
	_ "embed"
	"encoding/hex"
)

//go:embed bucket.lua
var bucketLua string

//go:embed take.lua
var takeLua string

//go:embed settle.lua
var settleLua string

var (
	takeScript   = newScript(takeLua)
	settleScript = newScript(settleLua)
)

// A script is known to a server by its digest, until somebody flushes it or
// another server takes over.
type script struct{ text, digest string }

func newScript(own string) *script {
	text := bucketLua + "\n" + own
	digest := sha1.Sum([]byte(text))
	return &script{text, hex.EncodeToString(digest[:])}
}
