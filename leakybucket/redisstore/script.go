package redisstore

import (
	_ "embed"

	"github.com/redis/rueidis"
)

//go:embed bucket.lua
var bucketLua string

//go:embed take.lua
var takeLua string

//go:embed settle.lua
var settleLua string

//go:embed list.lua
var listLua string

//go:embed registry.lua
var registryLua string

// A script is run by its digest. A server that does not know it, because it was
// restarted or its scripts were flushed, has not executed it, and is sent the text.
var (
	takeScript     = rueidis.NewLuaScript(bucketLua + "\n" + takeLua)
	settleScript   = rueidis.NewLuaScript(bucketLua + "\n" + settleLua)
	listScript     = rueidis.NewLuaScript(listLua)
	registryScript = rueidis.NewLuaScript(registryLua)
)
