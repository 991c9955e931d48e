//go:build race

package admission

// raceDetector tells tests that they take several times as long.
const raceDetector = true
