# Each target calls a script that says at its top how it is used.

.PHONY: help build run test test-all lint docs bench dist

help: ## list the targets
	@sed -n 's/^\([a-z-]*\): ## /\1	/p' Makefile | expand -t 12

build: ## build ./caddy
	./xcaddy.sh

run: ## build ./caddy, and run Caddyfile.example on localhost:8080
	./xcaddy.sh run

test: ## test with Go alone, and the servers that are installed
	./tests/run.sh

test-all: ## install what is missing, and test everything; needs Debian
	./tests/run.sh all

lint: ## golangci-lint, govulncheck, shellcheck, gofmt, vet, and the workflows
	./tests/run.sh lint

docs: ## test configurations, tables and links of the documentation
	go test -tags nobadger,nomysql,nopgx ./docs ./internal/house

bench: ## measure decisions in memory beside other limiters
	./bench/run.sh --take

dist: ## build programs and packages into dist/out
	./dist/build.sh
