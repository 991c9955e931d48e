package redisstore

import (
	"fmt"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// TestNoJunkKeepsTheBoardFromItsNodes: whatever somebody else has written to the hash, posts
// are written and read, beats too, and the junk in the place of a post is named.
func TestNoJunkKeepsTheBoardFromItsNodes(t *testing.T) {
	server := servertest.StartRedis(t)
	const own = 1 << 50
	for field, junk := range map[string][]string{
		"":      {"", "junk", "-1", "1e300", "99999999999999999999", "9007199254740993", "1125899906842624 and more"},
		"~":     {"", "junk", "1", "null", `"text"`, `[]`, `{"a":1}`, `{"a":[]}`, `{"a":["x","y"]}`, `{"a":[1,2]}`, `{"a":[99999999999999999999,"x"]}`},
		"=junk": {"", "junk", "-1", "1e300", "99999999999999999999 text", "9007199254740993 text"},
		"other": {"junk"},
	} {
		for i, value := range junk {
			s := open(t, Options{URL: "redis://" + server.Addr, Prefix: fmt.Sprint("junk", i, field, ":")})
			server.Do("hset", s.BoardName(), field, value)
			for _, call := range []leakybucket.BoardCall{
				{Node: "one", Beat: "a", Posts: []leakybucket.Post{{Name: "ours", Version: own + 1, Text: "text"}}},
				{Node: "two", Beat: "b", Posts: []leakybucket.Post{{Name: "junk", Version: own + 2, Was: 1, Text: "ours"}}},
			} {
				answer, err := s.Exchange(t.Context(), call)
				if err != nil {
					t.Fatalf("%q %q: got error %v, want none", field, value, err)
				}
				posts := map[string]leakybucket.Post{}
				for _, p := range answer.Posts {
					posts[p.Name] = p
				}
				if posts["ours"].Version != own+1 || posts["ours"].Text != "text" {
					t.Errorf("%q %q: got %+v, want our post", field, value, answer.Posts)
				}
				if p, is := posts["junk"]; field == "=junk" && (!is || call.Node == "two" && p.Text != "ours" || call.Node == "one" && p.Version != 1) {
					t.Errorf("%q %q as %s: got %+v, want the junk as a post of version 1, and then replaced", field, value, call.Node, answer.Posts)
				}
				if call.Node == "two" && (len(answer.Beats) != 1 || answer.Beats[0].Text != "a") {
					t.Errorf("%q %q: got beats %+v, want that of the first node", field, value, answer.Beats)
				}
			}
		}
	}
}
