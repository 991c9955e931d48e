package form

import "unicode/utf8"

// text looks for names in a body of a type that is not understood. It skips NUL bytes, so
// that UTF-16 is read as ASCII. Words of one or two letters are everywhere in what is no
// text, such as photos: from the first control byte on, they are no names.
type text struct {
	r       *Reading
	words   uint64 // what is looked for
	at      place
	opened  byte   // what is before the word: " or <, or ! of <!
	last    uint64 // what the last word is, up to = or what is no blank
	noPairs bool   // = ends no name: the body is read as pairs, too
	escape  int    // how much of %41 there has been
	high    byte
}

const entity = 1 << mostWanted // the word ENTITY: XML may hide names in them

func newText(r *Reading, noPairs bool) *text {
	words := r.plan.fields | entity
	return &text{r: r, words: words, at: place{alive: words}, noPairs: noPairs}
}

func (t *text) write(data []byte) {
	for _, c := range data {
		switch {
		case t.escape == 0 && c == '%':
			t.escape = 1
			continue
		case t.escape == 1 && unhex(c) < 16:
			t.escape, t.high = 2, c
			continue
		case t.escape == 2 && unhex(c) < 16:
			t.escape, c = 0, unhex(t.high)<<4|unhex(c)
		case t.escape > 0: // no escape
			t.delimiter('%')
			if t.escape == 2 {
				t.letter(t.high)
			}
			if t.escape = 0; c == '%' {
				t.escape = 1
				continue
			}
		}
		if c >= utf8.RuneSelf || folded[c] != 0 {
			t.letter(c)
		} else if c != 0 && c != '_' && c != '-' {
			t.delimiter(c)
		}
	}
}

// letter goes on with a word.
func (t *text) letter(c byte) {
	if t.at.alive == 0 {
		return
	}
	if c < utf8.RuneSelf {
		c = folded[c]
	}
	if t.at.length == len(t.r.plan.words.next) {
		t.at.alive = 0
		return
	}
	t.at.alive &= t.r.plan.words.next[t.at.length][c]
	t.at.length++
}

// delimiter ends a word.
func (t *text) delimiter(c byte) {
	opened := t.opened
	if c < '\t' || '\r' < c && c < ' ' && c != '\x1b' { // that is ESC, of ISO 2022
		ends := t.r.plan.words.ends // there is one, ENTITY
		t.words &^= ends[1] | ends[2]
	}
	if t.at.length > 0 || t.at.alive == 0 {
		t.last = t.r.plan.words.at(t.at)
		if opened == '<' || opened == '"' && c == '"' {
			t.r.unclear |= t.last &^ entity
		}
		if opened == '!' && t.last&entity != 0 {
			t.r.unclear = t.r.plan.all()
		}
	}
	t.at, t.opened = place{alive: t.words}, 0
	switch c {
	case '=':
		if !t.noPairs {
			t.r.unclear |= t.last &^ entity
		}
		t.last = 0
	case ' ', '\t', '\r', '\n', ']':
	case '<', '"':
		t.opened, t.last = c, 0
	case ':':
		t.last = 0
		if opened == '<' { // what was before it is the namespace
			t.opened = '<'
		}
	case '!':
		t.last = 0
		if opened == '<' {
			t.opened = '!'
		}
	default:
		t.last = 0
	}
}

func (t *text) end() { t.delimiter(0) }
