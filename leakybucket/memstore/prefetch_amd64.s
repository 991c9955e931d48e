#include "textflag.h"

// func prefetch(slots *slot, tags *uint8, at int)
TEXT ·prefetch(SB), NOSPLIT, $0-24
	MOVQ slots+0(FP), AX
	MOVQ tags+8(FP), BX
	MOVQ at+16(FP), CX
	PREFETCHT0 (BX)(CX*1)
	SHLQ $6, CX
	PREFETCHT0 (AX)(CX*1)
	RET
