//go:build gc && !purego

#include "go_asm.h"
#include "textflag.h"

// func prefetch(sh *shard, hash uint64)
TEXT ·prefetch(SB), NOSPLIT, $0-16
	MOVQ  sh+0(FP), DI
	MOVQ  hash+8(FP), CX
	MOVL  CX, CX
	IMULQ (shard_tags+8)(DI), CX // as home does
	SHRQ  $32, CX
	MOVQ  shard_tags(DI), BX
	PREFETCHT0 (BX)(CX*1)
	IMULQ $slot__size, CX
	MOVQ  shard_slots(DI), AX
	PREFETCHT0 (AX)(CX*1)
	RET
