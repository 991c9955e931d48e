// Package house holds the tests of where things live: which package may import which, and
// how entangled the files of a package are.
package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/caddy-throttle/caddy-throttle/"

// A room is packages and the others of this module that they may import.
type room struct{ packages, may string }

// concepts are the packages that hold one concept each. They may import each other, in no
// circle, and every room above may import them.
const concepts = "accesslog address admission blocked body clock cookie crawler detached device expiring fairqueue fold override overridefile pass " +
	"recommend refusal replay report response routes settlement signer sketch snapshot staticfile supportcode survey text tokens usage virtual"

// rooms are all packages that are built, from the bottom to the top, with a line for each
// row of the table in CONTRIBUTING. Names without a folder are in caddymodule/internal.
var rooms = []room{
	{"leakybucket", ""},
	{"leakybucket/key leakybucket/memstore leakybucket/storetest leakybucket/internal/coalesce", "leakybucket"},
	{"leakybucket/redisstore leakybucket/pgstore", "leakybucket leakybucket/internal/coalesce"},
	{"admin/wire golden", ""},
	{concepts, concepts},
	{"sharedstore", "leakybucket leakybucket/memstore"},
	{"rule", ""},
	{"decision", "rule"},
	{"config", "rule sharedstore"},
	{"caddyfile", "config"},
	{"lint", "config rule"},
	{"telemetry", "decision rule"},
	{"stores", "sharedstore telemetry leakybucket/memstore"},
	{"engine", "config decision rule sharedstore stores telemetry"},
	{"admin", "admin/wire engine decision rule sharedstore stores telemetry"},
	{"inspector", "admin engine"},
	{"cli", "admin/wire"},
	{"tune", "engine config decision leakybucket/memstore"},
	{"caddymodule", "admin caddyfile cli config decision engine inspector lint rule sharedstore stores tune"},
	{"caddymodule/redis", "caddymodule sharedstore stores leakybucket/redisstore"},
	{"caddymodule/postgres", "caddymodule sharedstore stores leakybucket/pgstore"},
	{"caddymodule/cmd/caddy", "caddymodule caddymodule/redis caddymodule/postgres"},
}

// full returns the import path of a package in a room.
func full(name string) string {
	if strings.HasPrefix(name, "leakybucket") || strings.HasPrefix(name, "caddymodule") {
		return module + name
	}
	return module + "caddymodule/internal/" + name
}

// A goPackage is what go list says of one.
type goPackage struct {
	ImportPath, Export, Dir string
	GoFiles, Imports, Deps  []string
	Standard                bool
}

// packages returns all packages by their import paths, and which of them are built of ours.
func packages(t *testing.T) (all map[string]*goPackage, ours []*goPackage) {
	t.Helper()
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Export,Dir,GoFiles,Imports,Deps,Standard", "./leakybucket/...", "./caddymodule/...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	all = make(map[string]*goPackage)
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(goPackage)
		if err := decoder.Decode(p); errors.Is(err, io.EOF) {
			return all, ours
		} else if err != nil {
			t.Fatal(err)
		}
		all[p.ImportPath] = p
		if strings.HasPrefix(p.ImportPath, module) && len(p.GoFiles) > 0 {
			ours = append(ours, p)
		}
	}
}

func TestEachRoomImportsWhatItMay(t *testing.T) {
	_, ours := packages(t)
	may := make(map[string][]string)
	everybody := "" // what each room from the concepts on may import
	for _, r := range rooms {
		if r.packages == concepts {
			everybody = " leakybucket leakybucket/key " + concepts
		}
		allowed := strings.Fields(r.may + everybody)
		for i := range allowed {
			allowed[i] = full(allowed[i])
		}
		for _, name := range strings.Fields(r.packages) {
			may[full(name)] = allowed
		}
	}
	for _, p := range ours {
		allowed, known := may[p.ImportPath]
		if !known {
			t.Errorf("%s is in no room: add it to rooms, and to the table in CONTRIBUTING", p.ImportPath)
			continue
		}
		for _, imported := range p.Imports {
			if strings.HasPrefix(imported, module) && !slices.Contains(allowed, imported) {
				t.Errorf("%s imports %s, and may not", strings.TrimPrefix(p.ImportPath, module), strings.TrimPrefix(imported, module))
			}
		}
	}
}

// TestWhatRoomsAreBuiltOf is about what others wrote: the library needs no Caddy, its model
// and the memory store nothing at all, and sites without a shared store no client of a database.
// Caddy itself brings a driver for PostgreSQL, so of the adapter only own imports count.
func TestWhatRoomsAreBuiltOf(t *testing.T) {
	all, ours := packages(t)
	for _, p := range ours {
		name := strings.TrimPrefix(p.ImportPath, module)
		for _, dep := range p.Deps {
			foreign := !all[dep].Standard && !strings.HasPrefix(dep, module)
			switch {
			case foreign && slices.Contains([]string{"leakybucket", "leakybucket/key", "leakybucket/memstore"}, name):
				t.Errorf("%s is built of %s, want the standard library only", name, dep)
			case strings.HasPrefix(name, "leakybucket") && (strings.HasPrefix(dep, "github.com/caddyserver/") || strings.HasPrefix(dep, "go.uber.org/zap")):
				t.Errorf("%s is built of %s, want nothing of Caddy", name, dep)
			}
		}
		for _, imported := range p.Imports {
			client := strings.HasPrefix(imported, "github.com/redis/") || strings.HasPrefix(imported, "github.com/jackc/")
			if client && strings.HasPrefix(name, "caddymodule") {
				t.Errorf("%s imports %s, want no client of a database", name, imported)
			}
		}
	}
}
