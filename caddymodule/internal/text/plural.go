package text

import "fmt"

// Plural returns a number of things, such as "1 zone" or "2 zones".
func Plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
