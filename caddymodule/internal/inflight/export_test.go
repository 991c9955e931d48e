package inflight

// PassEvents are for tests.
var PassEvents = passEvents
