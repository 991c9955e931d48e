package leakybucket

import (
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestRatesSayHowMuchInWhichTime(t *testing.T) {
	for _, test := range []struct {
		text string
		want float64 // a second
	}{
		{"2/s", 2},
		{"30/m", 0.5},
		{"1800/h", 0.5},
		{"86400/d", 1},
		{"8640/d", 0.1},
		{"1.5/s", 1.5},
		{"0.5/s", 0.5},
		{"007/s", 7},
		{" 10 / m ", 1. / 6},
		{"0.000000001/s", 1e-9},
		{"1000000000000/s", 1e12},
		{"86400000000000000/d", 1e12},
		{"5/20s", 0.25},
		{"300/5m", 1},
		{"10/1s", 10},
		{"1/2.5s", 0.4},
		{"1/0.5s", 2},
		{"36/2h", 0.005},
		{"1728/30d", 1728. / (30 * 86400)},
		{"2 / 10m", 2. / 600},
		{"1/1" + strings.Repeat("0", 8) + "s", 1e-8},
	} {
		got, err := ParseRate(test.text)
		check.Equal(t, got, test.want, "%q: the rate", test.text)
		check.Error(t, err, "", "%s", test.text)
	}
}

func TestRatesThatAreNone(t *testing.T) {
	const form, scope = ": want <number>/<s|m|h|d> or a longer period, such as 2/s or 5/20s", ": want a number from 0.000000001 to 1000000000000 a second"
	for text, want := range map[string]string{
		"ten":                                 form,
		"":                                    form,
		"10":                                  form,
		"/s":                                  form,
		"10/":                                 form,
		"10/w":                                form,
		"10/S":                                form,
		"10/0s":                               form,
		"10/0.0m":                             form,
		"10/-1s":                              form,
		"10/5":                                form,
		"10/5 s":                              form,
		"10/.5s":                              form,
		"10/5.s":                              form,
		"10/1.2.3s":                           form,
		"10/5m30s":                            form,
		"10/1e3s":                             form,
		"10/2w":                               form,
		"10/٢s":                               form,
		"10/s/s":                              form,
		"2/sec":                               form,
		"30/minute":                           form,
		"10r/s":                               form,
		"10/s;":                               form,
		"1,000/h":                             form,
		"10 per s":                            form,
		"-1/s":                                form,
		"+1/s":                                form,
		"1e3/s":                               form,
		".5/s":                                form,
		"5./s":                                form,
		"1.2.3/s":                             form,
		"1_000/s":                             form,
		"0x10/s":                              form,
		"NaN/s":                               form,
		"Inf/s":                               form,
		"١/s":                                 form, // an Arabic digit
		"1\x00/s":                             form,
		"1/" + strings.Repeat("9", 400) + "d": scope,
		"1/10000000000s":                      scope,
		"0.0000000009/s":                      scope,
		"0.00008/d":                           scope,
		"1000000000001/s":                     scope,
		strings.Repeat("9", 400) + "/s":       scope,
	} {
		got, err := ParseRate(text)
		check.Equal(t, got, 0, "%q: the rate, want 0 with the error", text)
		check.Error(t, err, `invalid rate "`+escaped(text)+`"`+want, "%s", text)
	}
}

func TestZeroIsNoRateAndNoCapacity(t *testing.T) {
	for _, text := range []string{"0/s", "0.0/h"} {
		_, err := ParseRate(text)
		check.Error(t, err, `invalid rate "`+text+`": a bucket must drain: want a number above 0, such as 1/h`, "%s", text)
	}
	for _, text := range []string{"0", "0.0"} {
		_, err := parseCapacity(text)
		check.Error(t, err, `invalid capacity "`+text+`": nothing would fit: want a number above 0, such as 10`, "%s", text)
	}
}

// escaped spells the one byte in these tests that %q would not show as it is.
func escaped(text string) string { return strings.ReplaceAll(text, "\x00", `\x00`) }

func TestCapacitiesArePlainNumbersInRange(t *testing.T) {
	for text, want := range map[string]float64{
		"10": 10, "2.5": 2.5, "0.000000001": 1e-9, "1000000000000": 1e12, "010": 10,
	} {
		got, err := parseCapacity(text)
		check.Equal(t, got, want, "%q", text)
		check.Error(t, err, "", "%s", text)
	}
	for _, text := range []string{
		"", "ten", "-1", "+1", "1e3", ".5", "5.", " 1", "1 ", "0x1", "1,000", "60;", "NaN", "Inf", "0.0000000009", "1000000000001",
		strings.Repeat("9", 400),
	} {
		got, err := parseCapacity(text)
		check.Equal(t, got, 0, "%q, want 0 with the error", text)
		check.Error(t, err, `invalid capacity "`+text+`": want a number from 0.000000001 to 1000000000000, such as 10`, "%s", text)
	}
}

func TestALimitIsACapacityAndALeak(t *testing.T) {
	for _, text := range []string{"10 1/s", "10, 1/s", "10,1/s", "10 , 60/m", "  10\t60/m ", "10.0 3600/h"} {
		got, err := ParseLimit(text)
		check.Equal(t, got, (Limit{10, 1}), "%q", text)
		check.Error(t, err, "", "%s", text)
	}
	const form = ": want <capacity> <leak>, such as 10 1/s"
	for text, want := range map[string]string{
		"":            `invalid limit ""` + form,
		"10":          `invalid limit "10"` + form,
		"1/s":         `invalid limit "1/s"` + form,
		"10 1 /s":     `invalid limit "10 1 /s"` + form,
		"10 1/s 5":    `invalid limit "10 1/s 5"` + form,
		"10,,1/s":     `invalid rate ",1/s": want <number>/<s|m|h|d> or a longer period, such as 2/s or 5/20s`,
		"ten 1/s":     `invalid capacity "ten": want a number from 0.000000001 to 1000000000000, such as 10`,
		"1/s 10":      `invalid limit "1/s 10": the capacity comes first: did you mean 10 1/s?`,
		"10 ten":      `invalid rate "ten": want <number>/<s|m|h|d> or a longer period, such as 2/s or 5/20s`,
		"10 0/s":      `invalid rate "0/s": a bucket must drain: want a number above 0, such as 1/h`,
		"1000000 1/d": tooSlow,
	} {
		_, err := ParseLimit(text)
		check.Error(t, err, want, "%s", text)
	}
}
