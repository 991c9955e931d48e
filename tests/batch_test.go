package tests

import (
	"encoding/json"
	"testing"
)

// batchOf is an import as scripts send it, below 64 KiB.
func batchOf(t *testing.T, rows int) string {
	t.Helper()
	type row struct {
		ID int `json:"id"`
	}
	batch := struct {
		Comment string `json:"comment"`
		Rows    []row  `json:"rows"`
	}{Comment: `"rows":[1,2,3]`}
	for n := range rows {
		batch.Rows = append(batch.Rows, row{n})
	}
	text, err := json.Marshal(batch)
	if err != nil || len(text) > 64<<10 {
		t.Fatalf("got a batch of %d bytes and %v, want it below 64 KiB", len(text), err)
	}
	return string(text)
}
