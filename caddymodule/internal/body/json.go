package body

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// A Path leads to an array in JSON, or names a field of a form. It is that part
// of gjson's syntax that has one meaning in every document: keys with dots
// between them, # for all elements of an array, and \ before a dot that is part
// of a key. The zero Path is the whole body.
type Path struct{ keys []string }

// ParsePath reads a path such as data.rows or orders.#.lines. Errors say what
// would be right.
func ParsePath(text string) (Path, error) {
	var path Path
	if text == "" {
		return path, nil
	}
	if strings.ContainsAny(text, "*?|@!{}()\x00") {
		return path, fmt.Errorf("invalid path %q: want keys with dots between them, such as data.rows or orders.#.lines", text)
	}
	const dot = "\x00" // that is part of a key
	for key := range strings.SplitSeq(strings.ReplaceAll(text, `\.`, dot), ".") {
		path.keys = append(path.keys, strings.ReplaceAll(key, dot, "."))
	}
	if slices.Contains(path.keys, "") {
		return path, fmt.Errorf("invalid path %q: a key is empty", text)
	}
	return path, nil
}

func looksLikeJSON(data []byte) bool {
	data = bytes.TrimLeft(bytes.TrimPrefix(data, byteOrderMark), " \t\r\n")
	return len(data) > 0 && (data[0] == '[' || data[0] == '{')
}

var byteOrderMark = []byte("\ufeff")

// numbered reports whether a key is what PHP and Rails take for an index.
func numbered[T string | []byte](key T) bool {
	digits := strings.TrimPrefix(string(key), "-")
	return digits != "" && strings.Trim(digits, "0123456789") == ""
}

// jsonItems returns the length of the array at path, or 1 if there is none. JSON that is
// nested deeper than 10,000 levels is not understood; PHP reads 512 by default, Rails 100.
func jsonItems(data []byte, path Path) (n int, ok bool) {
	data = bytes.TrimPrefix(data, byteOrderMark)
	if !json.Valid(data) {
		return 0, false
	}
	return max(1, count(gjson.ParseBytes(data), path.keys)), true
}

// count returns the length of the array that keys lead to in a value. A key that stands
// twice in an object counts as the longer, since applications differ in which one they
// take. Objects with numbered keys are arrays. Each key reads the value behind it once
// more, so that the time is bounded by the length of the path.
func count(value gjson.Result, keys []string) int {
	switch {
	case !value.IsObject() && !value.IsArray() && len(keys) == 0:
		return 1
	case !value.IsObject() && !value.IsArray():
		return 0
	}
	array := value.IsArray()
	longest, elements, at := 0, 0, 0
	value.ForEach(func(key, inner gjson.Result) bool {
		index := array || numbered(key.Str)
		switch {
		case len(keys) == 0:
			if index {
				elements++
			}
		case keys[0] == "#" && index, array && keys[0] == strconv.Itoa(at):
			elements += count(inner, keys[1:])
		case !array && key.Str == keys[0]:
			longest = max(longest, count(inner, keys[1:]))
		}
		at++
		return true
	})
	if len(keys) == 0 && !array {
		return max(1, elements)
	}
	return longest + elements
}
