package config

import (
	"encoding/json"
	"fmt"
)

// Definition returns a canonical text of the zone: definitions of one name must have
// the same.
func (z *Zone) Definition() string {
	full := z.WithDefaults()
	raw, _ := json.Marshal(&full) // its matchers have been JSON before
	return canonical(raw)
}

// canonical returns JSON without fields of some names. Matchers are raw JSON: a map forgets
// their order and white space.
func canonical(raw []byte, without ...string) string {
	var value map[string]any
	_ = json.Unmarshal(raw, &value)
	for _, name := range without {
		delete(value, name)
	}
	raw, _ = json.Marshal(value)
	return string(raw)
}

// Duplicates are the names of one handler's zones by the rest of their definitions.
type Duplicates map[string]string

// Add refuses a zone that is an earlier one, or differs from it only in its name, because it
// would charge each request twice. The definition is the zone's JSON.
func (d Duplicates) Add(name, definition string) error {
	nameless := canonical([]byte(definition), "name")
	other, found := d[nameless]
	switch {
	case other == name:
		return fmt.Errorf("zone %q is given twice in one handler", name)
	case found:
		return fmt.Errorf("zones %q and %q of one throttle directive are the same but for their names, and would refuse the same requests: remove one", other, name)
	}
	d[nameless] = name
	return nil
}
