package swarm

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// The picture follows the reader's choice of light or dark, and can be read on a phone.
const style = `<style>
svg{color-scheme:light dark;--back:#fff;--ink:#1f2328;--soft:#59636e;--grid:#d1d9e0;--members:#8fb8e0;--first:#2a6fb8}
@media(prefers-color-scheme:dark){svg{--back:#0d1117;--ink:#e6edf3;--soft:#9aa4af;--grid:#30363d;--members:#2f5f8f;--first:#6cb0f5}}
text{font:15px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink)}
.title{font-size:17px;font-weight:600}.strong{font-weight:600}.soft{font-size:14px;fill:var(--soft)}
.back{fill:var(--back)}.grid{fill:var(--grid)}.members{fill:var(--members)}.first{fill:var(--first)}
</style>
`

// WriteSVG draws what members and newcomers got: two bars for each row, under a heading
// for each traffic.
func WriteSVG(w io.Writer, title string, rows []Row) error {
	const width, margin, longest = 400, 16, 310
	var text, shows strings.Builder
	y, traffic := 70, ""
	for _, row := range rows {
		if row.Traffic != traffic {
			traffic = row.Traffic
			y += 36
			fmt.Fprintf(&text, `<text class="strong" x="%d" y="%d">%s</text>`+"\n", margin, y, html.EscapeString(traffic))
			fmt.Fprintf(&shows, "%s: ", html.EscapeString(traffic))
			y += 8
		}
		y += 20
		fmt.Fprintf(&text, `<text x="%d" y="%d">%s</text>`+"\n", margin, y, html.EscapeString(row.Site))
		fmt.Fprintf(&shows, "%s members %s %%, new visitors %s %%. ", html.EscapeString(row.Site), rounded(row.Member.Share()), rounded(row.First.Share()))
		y += 6
		for _, bar := range []struct {
			class string
			share float64
		}{{"members", row.Member.Share()}, {"first", row.First.Share()}} {
			if math.IsNaN(bar.share) {
				continue
			}
			fmt.Fprintf(&text, `<rect class="grid" x="%d" y="%d" width="%d" height="12"/><rect class="%s" x="%[1]d" y="%[2]d" width="%.0[5]f" height="12"/><text class="soft" x="%[6]d" y="%[7]d">%[8]s %%</text>`+"\n",
				margin, y, longest, bar.class, bar.share*longest, margin+longest+8, y+11, rounded(bar.share))
			y += 15
		}
	}
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" role="img" aria-labelledby="t d">
<title id="t">%[3]s</title>
<desc id="d">%[4]s</desc>
%[5]s<rect class="back" width="%[1]d" height="%[2]d" rx="10"/>
<text class="title" x="%[6]d" y="34">%[3]s</text>
<rect class="members" x="%[6]d" y="52" width="14" height="12"/><text class="soft" x="%[7]d" y="63">members</text>
<rect class="first" x="%[8]d" y="52" width="14" height="12"/><text class="soft" x="%[9]d" y="63">new visitors</text>
%[10]s</svg>
`, width, y+16, html.EscapeString(title), shows.String(), style, margin, margin+20, margin+110, margin+130, text.String())
	return err
}

func rounded(share float64) string {
	if math.IsNaN(share) {
		return "-"
	}
	return fmt.Sprintf("%.0f", 100*share)
}
