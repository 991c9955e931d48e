// Package bench compares the stores with other limiters, and the handler with no
// limiter. It is a module of its own, so that other limiters are no dependencies
// of ours. README.md has the commands, docs/performance.md the figures.
package bench
