package crawler

// Lists are those of the process.
var Lists = &lists
