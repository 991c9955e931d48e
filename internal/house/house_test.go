// Package house holds the tests of where things live: which package may import which, and
// how entangled the files of a package are.
package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/caddy-throttle/caddy-throttle/"

// A room is packages and the others of this module that they may import.
type room struct{ packages, may string }

// concepts are the packages that hold one concept each. They may import each other, in no
// circle, and every room above may import them.
const concepts = "body changes cookie device expiring fold form inflight/call inflight/fairqueue inflight/gate inflight/pass override overridefile perkey " +
	"record refusal response settlement signer sketch snapshot staticfile supportcode text tokens usage"

// rooms are all packages that are built, from the bottom to the top, with a line for each
// row of the table in CONTRIBUTING. Names without a folder are in caddymodule/internal.
var rooms = []room{
	{"leakybucket/internal/door", ""},
	{"leakybucket", "leakybucket/internal/door"},
	{"leakybucket/store leakybucket/key leakybucket/internal/coalesce", "leakybucket"},
	{"leakybucket/memstore leakybucket/storetest", "leakybucket leakybucket/internal/door leakybucket/store"},
	{"leakybucket/sharedstore", "leakybucket leakybucket/memstore leakybucket/store"},
	{"leakybucket/httplimit", "leakybucket leakybucket/key"},
	{"leakybucket/storetest/servertest leakybucket/storetest/testseed", ""},
	{"leakybucket/redisstore leakybucket/pgstore leakybucket/memcachedstore", "leakybucket leakybucket/internal/coalesce leakybucket/store"},
	{"golden", ""},
	{concepts, concepts},
	{"rule", ""},
	{"decision", "rule"},
	{"config", "rule leakybucket/sharedstore"},
	{"caddyfile", "config"},
	{"telemetry", "decision rule"},
	{"admin/wire", "telemetry"},
	{"stores", "leakybucket/sharedstore telemetry leakybucket/memstore"},
	{"inflight", "config rule stores telemetry leakybucket/memstore"},
	{"engine", "config decision inflight rule leakybucket/sharedstore stores telemetry"},
	{"admin", "admin/wire engine decision inflight rule leakybucket/sharedstore stores telemetry"},
	{"cli", "admin/wire"},
	{"caddymodule", "admin admin/wire caddyfile cli config decision engine inflight rule leakybucket/sharedstore stores"},
	{"servertest", "caddymodule admin admin/wire decision engine leakybucket/memstore leakybucket/sharedstore stores telemetry"},
	{"caddymodule/redis", "caddymodule stores leakybucket/redisstore"},
	{"caddymodule/postgres", "caddymodule stores leakybucket/pgstore"},
}

// guests use the core by what package caddymodule exports, as packages of strangers do. The
// core imports none of them. Only tune, which decides as the core does, uses more.
var guests = []room{
	{"caddymodule/crawler", "caddymodule caddymodule/crawler/internal/verify"},
	{"caddymodule/crawler/internal/verify", "caddymodule"},
	{"caddymodule/listener", "caddymodule leakybucket/key"},
	{"caddymodule/inspector", "caddymodule"},
	{"caddymodule/tune/internal/accesslog caddymodule/tune/internal/survey", "sketch text leakybucket"},
	{"caddymodule/tune/internal/replay caddymodule/tune/internal/recommend", "caddymodule/tune/internal/accesslog caddymodule/tune/internal/survey text leakybucket leakybucket/key"},
	{"caddymodule/tune", "caddymodule caddymodule/tune/internal/accesslog caddymodule/tune/internal/recommend caddymodule/tune/internal/replay " +
		"config decision engine record settlement leakybucket leakybucket/memstore"},
	{"caddymodule/memcached", "caddymodule leakybucket leakybucket/memcachedstore"},
	{"caddymodule/standard", "caddymodule caddymodule/crawler caddymodule/inspector caddymodule/listener caddymodule/tune caddymodule/redis caddymodule/postgres"},
	{"caddymodule/cmd/caddy", "caddymodule/standard"},
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
	// With the tags of tests/run.sh, so that what it has compiled is used again.
	cmd := exec.Command("go", "list", "-tags", "nobadger,nomysql,nopgx", "-export", "-deps", "-json=ImportPath,Export,Dir,GoFiles,Imports,Deps,Standard", "./leakybucket/...", "./leakybucket/pgstore/...", "./leakybucket/memcachedstore/...", "./leakybucket/redisstore/...", "./leakybucket/sharedstore/...", "./caddymodule/...")
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

func TestContributingNamesEachRoom(t *testing.T) {
	page, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range slices.Concat(rooms, guests) {
		for _, name := range strings.Fields(r.packages) {
			if !strings.Contains(string(page), "`"+name+"`") && !strings.HasPrefix(name, "caddymodule/tune/internal/") && !strings.HasPrefix(name, "caddymodule/crawler/internal/") {
				t.Errorf("got nothing about the package %s", name)
			}
		}
	}
}

func TestEachRoomImportsWhatItMay(t *testing.T) {
	_, ours := packages(t)
	may := make(map[string][]string)
	everybody := "" // what each room of the core from the concepts on may import
	for i, r := range slices.Concat(rooms, guests) {
		if r.packages == concepts {
			everybody = " leakybucket leakybucket/key leakybucket/store " + concepts
		}
		if i == len(rooms) {
			everybody = ""
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

// TestWhatRoomsAreBuiltOf is about what others wrote: the library needs no Caddy, nor do slots
// and turns, its model and the memory store nothing at all, and sites without a shared store no client of a database.
// Caddy itself brings a driver for PostgreSQL, so of the adapter only own imports count.
func TestWhatRoomsAreBuiltOf(t *testing.T) {
	all, ours := packages(t)
	for _, p := range ours {
		name := strings.TrimPrefix(p.ImportPath, module)
		for _, dep := range p.Deps {
			foreign := !all[dep].Standard && !strings.HasPrefix(dep, module)
			switch {
			case foreign && slices.Contains([]string{"leakybucket", "leakybucket/store", "leakybucket/key", "leakybucket/memstore"}, name):
				t.Errorf("%s is built of %s, want the standard library only", name, dep)
			case (strings.HasPrefix(name, "leakybucket") || strings.HasSuffix(name, "inflight/gate")) && (strings.HasPrefix(dep, "github.com/caddyserver/") || strings.HasPrefix(dep, "go.uber.org/zap")):
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

func TestEachPackageSaysWhereToBegin(t *testing.T) {
	_, ours := packages(t)
	for _, p := range ours {
		if name := strings.TrimPrefix(p.ImportPath, module); !strings.HasPrefix(name, "caddymodule") || slices.Contains([]string{"caddymodule/redis", "caddymodule/postgres", "caddymodule/standard", "caddymodule/cmd/caddy"}, name) || strings.HasSuffix(name, "/golden") || strings.HasSuffix(name, "/servertest") {
			continue
		}
		said := slices.ContainsFunc(p.GoFiles, func(name string) bool {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
			return err == nil && strings.Contains(strings.ReplaceAll(f.Doc.Text(), "\n", " "), "Begin with ")
		})
		if !said {
			t.Errorf("the comment of package %s does not say where to begin", p.ImportPath)
		}
	}
}

// TestNoPackageIsOneKnot prints the largest knot of each package of the adapter: files that
// refer to each other in circles. It is at most four files, or a third of them and ten.
func TestNoPackageIsOneKnot(t *testing.T) {
	all, ours := packages(t)
	for _, p := range ours {
		if !strings.HasPrefix(p.ImportPath, module+"caddymodule") {
			continue
		}
		knot, files := largestKnot(t, p, all)
		if files > 1 {
			t.Logf("%-50s %2d files, largest knot %2d: %s", strings.TrimPrefix(p.ImportPath, module), files, len(knot), strings.Join(knot, " "))
		}
		if files > 8 && (len(knot) > 10 || len(knot) > max(4, files/3)) {
			t.Errorf("%s: %d of %d files are one knot, want at most four or a third: %s", p.ImportPath, len(knot), files, strings.Join(knot, " "))
		}
	}
}

// largestKnot returns the files of the largest strongly connected component of a package:
// a file refers to another if it names something that is declared there. files is how many
// declare anything.
func largestKnot(t *testing.T, p *goPackage, all map[string]*goPackage) (knot []string, declaring int) {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
		if len(f.Decls) > 0 {
			declaring++
		}
	}
	lookup := func(path string) (io.ReadCloser, error) { return os.Open(all[path].Export) }
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", lookup), FakeImportC: true}
	pkg, err := conf.Check(p.ImportPath, fset, files, info)
	if err != nil {
		t.Fatal(err)
	}
	fileOf := func(pos token.Pos) string { return filepath.Base(fset.Position(pos).Filename) }
	refers := make(map[string]map[string]bool)
	for id, object := range info.Uses {
		if object.Pkg() != pkg || !object.Pos().IsValid() {
			continue
		}
		if from, to := fileOf(id.Pos()), fileOf(object.Pos()); from != to {
			if refers[from] == nil {
				refers[from] = make(map[string]bool)
			}
			refers[from][to] = true
		}
	}
	return largestComponent(p.GoFiles, refers), declaring
}

// largestComponent returns the largest strongly connected component: the nodes that reach
// each other.
func largestComponent(nodes []string, refers map[string]map[string]bool) (largest []string) {
	reached := make(map[string]map[string]bool)
	for _, from := range nodes {
		seen, next := make(map[string]bool), []string{from}
		for len(next) > 0 {
			at := next[0]
			next = next[1:]
			for to := range refers[at] {
				if !seen[to] {
					seen[to] = true
					next = append(next, to)
				}
			}
		}
		reached[from] = seen
	}
	for _, a := range nodes {
		var component []string
		for _, b := range nodes {
			if a == b || reached[a][b] && reached[b][a] {
				component = append(component, b)
			}
		}
		if len(component) > len(largest) {
			largest = component
		}
	}
	slices.Sort(largest)
	return largest
}

func TestTheLargestComponentIsFound(t *testing.T) {
	refers := map[string]map[string]bool{"a": {"b": true}, "b": {"c": true}, "c": {"a": true, "d": true}, "d": {"e": true}, "e": {"d": true}}
	if got := largestComponent([]string{"e", "d", "c", "b", "a"}, refers); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("got %v, want a, b and c", got)
	}
}
