package leakybucket

import (
	"fmt"
	"strconv"
	"strings"
)

// secondsPer has the units of time in which a rate may be given.
var secondsPer = map[string]float64{"s": 1, "m": 60, "h": 3600, "d": 86400}

// ParseRate reads a rate such as "2/s", "30/m", "1000/h" or "5000/d", or over a
// longer period, such as "5/20s" or "300/5m". It returns units a second. Both
// numbers may have a fraction. The units are s, m, h and d.
func ParseRate(text string) (float64, error) {
	number, period, _ := strings.Cut(text, "/")
	amount, plain := ParseCost(strings.TrimSpace(number))
	per, known := parsePeriod(strings.TrimSpace(period))
	if !known || !plain {
		return 0, fmt.Errorf("invalid rate %q: want <number>/<s|m|h|d> or a longer period, such as 2/s or 5/20s", text)
	}
	rate := amount / per
	if amount == 0 {
		return 0, fmt.Errorf("invalid rate %q: a bucket must drain: want a number above 0, such as 1/h", text)
	}
	if !(smallest <= rate && rate <= largest) {
		return 0, fmt.Errorf("invalid rate %q: want %s a second", text, inRange)
	}
	return rate, nil
}

// parsePeriod reads "s" or "20s" and returns seconds, above 0.
func parsePeriod(text string) (seconds float64, ok bool) {
	unit := strings.TrimLeft(text, ".0123456789")
	seconds, ok = secondsPer[unit]
	if count := strings.TrimSuffix(text, unit); ok && count != "" {
		n, plain := ParseCost(count)
		return n * seconds, plain && n > 0
	}
	return seconds, ok
}

// parseCapacity reads a capacity, such as "10" or "2.5", in units of cost.
func parseCapacity(text string) (float64, error) {
	capacity, plain := ParseCost(text)
	if plain && capacity == 0 {
		return 0, fmt.Errorf("invalid capacity %q: nothing would fit: want a number above 0, such as 10", text)
	}
	if !plain || !(smallest <= capacity && capacity <= largest) {
		return 0, fmt.Errorf("invalid capacity %q: want %s, such as 10", text, inRange)
	}
	return capacity, nil
}

// ParseLimit reads a capacity and a leak, such as "10 1/s" or "10, 1/s".
func ParseLimit(text string) (Limit, error) {
	words := strings.Fields(strings.Replace(text, ",", " ", 1))
	if len(words) != 2 {
		return Limit{}, fmt.Errorf("invalid limit %q: want <capacity> <leak>, such as 10 1/s", text)
	}
	capacity, err := parseCapacity(words[0])
	if err != nil {
		if _, swapped := ParseRate(words[0]); swapped == nil && digits(words[1][:1]) {
			err = fmt.Errorf("invalid limit %q: the capacity comes first: did you mean %s %s?", text, words[1], words[0])
		}
		return Limit{}, err
	}
	leak, err := ParseRate(words[1])
	if err != nil {
		return Limit{}, err
	}
	limit := Limit{Capacity: capacity, Leak: leak}
	return limit, limit.Validate()
}

// ParseCost reads a cost as a client or an upstream may write it: digits, and
// perhaps a point and more digits. It returns false for everything else that
// other parsers take for a number: signs, exponents, hexadecimal, NaN,
// underscores. Too many digits make a large number.
func ParseCost(text string) (float64, bool) {
	whole, fraction, point := strings.Cut(text, ".")
	if !digits(whole) || point && !digits(fraction) {
		return 0, false
	}
	// The only error left is a number out of range, which comes as +Inf.
	value, _ := strconv.ParseFloat(text, 64)
	return value, true
}

func digits(text string) bool {
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return false
		}
	}
	return text != ""
}
