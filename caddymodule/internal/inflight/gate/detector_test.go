//go:build race

package gate

// raceDetector tells tests that they take several times as long.
const raceDetector = true
