package swarm

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// A Trial is what one run has counted, and how it was run.
type Trial struct {
	Traffic, Site string
	Seed          uint64
	Lasted        time.Duration
	Began         time.Time
	Result        *Result
}

// Keep adds the trial to a file, as a line of JSON.
func (t *Trial) Keep(file string) error {
	line, err := json.Marshal(t)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = out.Write(append(line, '\n'))
	return errors.Join(err, out.Close())
}

// Kept returns the trials of a file, or none if there is no such file.
func Kept(file string) (trials []*Trial, err error) {
	in, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		trial := new(Trial)
		if err := json.Unmarshal(lines.Bytes(), trial); err != nil {
			return nil, fmt.Errorf("reading %s: %w", file, err)
		}
		trials = append(trials, trial)
	}
	return trials, lines.Err()
}

// Sum adds up the trials of one traffic and site: the last of each seed and duration.
// Those that the machine has disturbed count only if there is no other. It returns nil if
// there is none at all.
func Sum(trials []*Trial, traffic, site string) *Row {
	type form struct {
		seed  uint64
		lasts time.Duration
	}
	last := map[bool]map[form]*Trial{false: {}, true: {}} // by whether they were disturbed
	for _, trial := range trials {
		if trial.Traffic == traffic && trial.Site == site {
			last[trial.Result.Disturbed()][form{trial.Seed, trial.Lasted}] = trial
		}
	}
	counted := last[false]
	if len(counted) == 0 {
		counted = last[true]
	}
	if len(counted) == 0 {
		return nil
	}
	row := &Row{Traffic: traffic, Site: site, Result: new(Result)}
	for _, trial := range counted {
		row.Trials++
		row.Lasted += trial.Lasted
		row.Add(trial.Result)
	}
	return row
}
