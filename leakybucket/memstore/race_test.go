//go:build race

package memstore

// raceDetector tells tests of memory and time that neither is what it is.
const raceDetector = true
