package form

import "unicode/utf8"

// text looks for names in a body of a type that is not understood. It skips NUL bytes, so
// that UTF-16 is read as ASCII. Words of one or two letters are everywhere in what is no
// text, such as photos: from the first control byte on, they are no names.
type text struct {
	r      *Reading
	words  uint64 // what is looked for
	at     place
	opened byte   // what is before the word: " or <
	last   uint64 // what the last word is, up to = or what is no blank
}

const hiding = 1 << mostWanted // <!ENTITY and <!ATTLIST: XML may hide names in entities, and have attributes by default

// kinds are letters, in lower case and with the ! of <!, 0 for what is skipped in words, and delimiter.
var kinds = func() (table [256]byte) {
	for i := range table {
		switch c := byte(i); {
		case c >= utf8.RuneSelf, c == '!':
			table[c] = c
		case folded[c] != 0:
			table[c] = folded[c]
		case c != 0 && c != '_' && c != '-':
			table[c] = delimiter
		}
	}
	return table
}()

const delimiter = 1

func (t *text) write(data []byte) {
	next := t.r.plan.words.next
	for _, c := range data {
		switch kind := kinds[c]; {
		case kind == delimiter, kind == '!' && (t.opened != '<' || t.at.length > 0):
			t.delimiter(c)
		case kind == 0 || t.at.alive == 0:
		case t.at.length == len(next):
			t.at.alive = 0
		default:
			t.at.alive &= next[t.at.length][kind]
			t.at.length++
		}
	}
}

// delimiter ends a word.
func (t *text) delimiter(c byte) {
	opened := t.opened
	if c < '\t' || '\r' < c && c < ' ' && c != '\x1b' { // that is ESC, of ISO 2022
		t.words &^= t.r.plan.short()
	}
	if t.at.length > 0 || t.at.alive == 0 {
		t.last = t.r.plan.words.at(t.at)
		if opened == '<' && t.last&hiding != 0 {
			t.r.unclear = t.r.plan.all()
		}
		if opened == '<' || opened == '"' && c == '"' {
			t.r.unclear |= t.last &^ hiding
		}
	}
	t.at, t.opened = place{alive: t.words}, 0
	switch c {
	case '=':
		t.r.unclear |= t.last &^ hiding
		t.last = 0
	case ' ', '\t', '\r', '\n', ']':
	case '<', '"':
		t.opened, t.last = c, 0
	case ':': // what was before it may be a namespace
		t.opened, t.last = opened, 0
	default:
		t.last = 0
	}
}

// short returns the fields whose last keys are that short.
func (p *Plan) short() uint64 { return p.words.ends[1] | p.words.ends[2] } // those of XML are longer

func (t *text) end() { t.delimiter(0) }
