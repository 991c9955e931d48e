package storetest

import (
	"fmt"
	"reflect"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// optional are the interfaces that a store may implement besides [leakybucket.Store].
var optional = []reflect.Type{
	reflect.TypeFor[store.Resetter](),
	reflect.TypeFor[store.Counter](), reflect.TypeFor[store.Evicter](), reflect.TypeFor[store.Lister](),
	reflect.TypeFor[store.Registry](),
}

// nearly says which optional interfaces a store implements in part, or with other types.
func nearly(store leakybucket.Store) (problems []string) {
	value := reflect.ValueOf(store)
	for _, wanted := range optional {
		if value.Type().Implements(wanted) {
			continue
		}
		for i := range wanted.NumMethod() {
			want := wanted.Method(i)
			switch got := value.MethodByName(want.Name); {
			case !got.IsValid():
			case got.Type() == want.Type:
				problems = append(problems, fmt.Sprintf("%v has the method %s of %v, and not its others", value.Type(), want.Name, wanted))
			default:
				problems = append(problems, fmt.Sprintf("%v is no %v: its method %s is a %v, want a %v", value.Type(), wanted, want.Name, got.Type(), want.Type))
			}
		}
	}
	return problems
}
