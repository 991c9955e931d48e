package verify

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

const (
	// maxList is how large a list may be, in bytes.
	maxList = 1 << 20

	// The widest networks that a list may have. No operator has 1/4096 of the Internet.
	widestIPv4 = 12
	widestIPv6 = 28
)

// parse reads a list: JSON as the operators publish it, whose prefixes are objects with
// an ipv4Prefix or ipv6Prefix, or plain text with a network in each line. It refuses
// lists with networks that cannot be an operator's.
func parse(data []byte) ([]netip.Prefix, error) {
	if len(data) > maxList {
		return nil, errors.New("it is larger than 1 MiB")
	}
	read := readText
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		read = readJSON
	}
	texts, err := read(data)
	if err != nil {
		return nil, err
	}
	if len(texts) == 0 {
		return nil, errors.New("it has no networks")
	}
	networks := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		if networks[i], err = readNetwork(text); err != nil {
			return nil, err
		}
	}
	return networks, nil
}

func readJSON(data []byte) (texts []string, err error) {
	var list struct {
		Prefixes []struct {
			IPv4 string `json:"ipv4Prefix"`
			IPv6 string `json:"ipv6Prefix"`
		} `json:"prefixes"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("reading its JSON: %w", err)
	}
	for i, found := range list.Prefixes {
		if found.IPv4 == "" && found.IPv6 == "" {
			return nil, fmt.Errorf("its prefix %d has no ipv4Prefix and no ipv6Prefix", i+1)
		}
		texts = append(texts, found.IPv4, found.IPv6)
	}
	return slices.DeleteFunc(texts, func(text string) bool { return text == "" }), nil
}

func readText(data []byte) (texts []string, err error) {
	for line := range strings.Lines(string(data)) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" {
			texts = append(texts, line)
		}
	}
	return texts, nil
}

// reserved are the networks from which no crawler visits a public site.
var reserved = func() (networks []netip.Prefix) {
	for _, text := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "224.0.0.0/3",
		"::/3", "4000::/2", "8000::/1", "2002::/16", // all but 2000::/3, and 6to4
	} {
		networks = append(networks, netip.MustParsePrefix(text))
	}
	return networks
}()

// readNetwork reads a network or an address. It refuses networks that are too wide, private or
// reserved.
func readNetwork(text string) (netip.Prefix, error) {
	network, err := netip.ParsePrefix(text)
	if addr, errAddr := netip.ParseAddr(text); errAddr == nil && addr.Zone() == "" {
		network, err = netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	if err != nil {
		return network, fmt.Errorf("it has %.50q, which is no network", text)
	}
	widest := widestIPv6
	if network.Addr().Is4() {
		widest = widestIPv4
	}
	if network.Bits() < widest {
		return network, fmt.Errorf("its network %v is wider than /%d", network, widest)
	}
	if slices.ContainsFunc(reserved, network.Overlaps) {
		return network, fmt.Errorf("its network %v is private or reserved", network)
	}
	return network.Masked(), nil
}

// A table finds out whether an address is in one of many networks, which are in order, none
// within another. It is immutable.
type table []netip.Prefix

func newTable(networks []netip.Prefix) *table {
	t := new(table)
	for _, network := range slices.SortedFunc(slices.Values(networks), netip.Prefix.Compare) {
		if n := len(*t); n == 0 || !(*t)[n-1].Contains(network.Addr()) {
			*t = append(*t, network)
		}
	}
	return t
}

// contains reports whether an address is in one of the networks.
func (t *table) contains(addr netip.Addr) bool {
	i, exact := slices.BinarySearchFunc(*t, addr, func(n netip.Prefix, addr netip.Addr) int { return n.Addr().Compare(addr) })
	return exact || i > 0 && (*t)[i-1].Contains(addr)
}
