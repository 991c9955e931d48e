package tune

import (
	"fmt"
	"io"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"
)

const (
	progressAfter = time.Second
	progressEvery = 200 * time.Millisecond
)

// show shows the progress until the reader is closed.
func (r *LogReader) show(out io.Writer) {
	defer close(r.ended)
	_, total, _ := r.Progress()
	if total == 0 {
		total = -1
	}
	bar := progressbar.NewOptions64(total, progressbar.OptionSetWriter(out), progressbar.OptionShowBytes(true),
		progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish(), progressbar.OptionFullWidth())
	began := time.Now()
	select {
	case <-r.done:
		return
	case <-time.After(progressAfter):
	}
	defer func() { _ = bar.Clear() }()
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for {
		read, _, lines := r.Progress()
		bar.Describe(fmt.Sprintf("%s lines, %s a second", humanize.Comma(lines), humanize.Comma(int64(float64(lines)/time.Since(began).Seconds()))))
		if total < 0 || read < total {
			_ = bar.Set64(read)
		}
		select {
		case <-r.done:
			return
		case <-ticker.C:
		}
	}
}
