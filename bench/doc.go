// Package bench measures the stores beside other limiters, and the handler beside
// no limiter. It is a module of its own, so that what it compares with is no
// dependency of ours. README.md has the commands and the figures.
package bench
