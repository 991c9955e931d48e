package redisstore

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by SHA-1
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

// A script is run by its digest. A server that does not know it, because it was
// restarted or its scripts were flushed, needs the text once.
type script struct{ text, digest string }

func newScript(own string) *script {
	text := bucketLua + "\n" + own
	digest := sha1.Sum([]byte(text))
	return &script{text, hex.EncodeToString(digest[:])}
}
