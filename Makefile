# What people call: make demo, make test. The rest is what those are made of.
# Needed: Go 1.26, make, a C compiler (the race detector's), python3, npm.

CACHE    ?= $(if $(EPP_CACHE),$(EPP_CACHE),$(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/epp)
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
FUZZTIME ?= 10s
BENCH    ?= .
DEMOTIME ?= 15s

GOLANGCI_VERSION := 2.15.0
GOLANGCI         := $(CACHE)/golangci-lint-$(GOLANGCI_VERSION)/golangci-lint

# A clone that belongs to somebody else must build too: no version control stamp.
export GOFLAGS := $(GOFLAGS) -buildvcs=false

# Static, and the same bytes from any folder. grpcnotrace leaves out a package that calls
# methods by their names: with one such package the linker keeps every exported method.
BUILD := CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -ldflags "-s -w -X main.version=$(VERSION)"

.PHONY: demo demo-envoy demo-check test test-vllm test-browser test-loaded test-gateway race alloc lint fmt build dist image test-image kustomize test-kube fuzz bench gobench bench-check claims policies clean

## demo: four simulated engines, a proxy on :8080 and a table; nothing to install
demo:
	go run ./cmd/epp demo

## demo-envoy: the same with a real Envoy in place of the proxy, fetched once
demo-envoy:
	envoy=$$(test/fetch-envoy.sh) && go run ./cmd/epp demo --envoy "$$envoy"

## demo-check: the demo against random and least-connections routing, by number
demo-check: build
	bin/epp demo --for $(DEMOTIME) --json | go run ./test/democheck

## test: everything that must be green before a change is merged
test: race alloc lint

## test-vllm: the picker, and agents, in front of two real vLLM servers on CPU, installed once (7 GB); three starts of an engine, and three minutes
test-vllm:
	test/vllm/install.sh >/dev/null
	go test -tags vllm -count=1 -timeout 40m -v ./test/vllm

## test-loaded: the simulator's mean time to first token against a load on both vLLM servers; wants a machine to itself
test-loaded:
	test/vllm/install.sh >/dev/null
	go test -tags 'vllm loaded' -count=1 -timeout 40m -v -run TestLoadedRunIsPredicted ./test/vllm

## test-browser: the simulator's report in Chromium, installed once
test-browser:
	test/browser/run.sh

## test-gateway: the picker behind a gateway that Istio configures, on a real API server, in a network namespace; root, on Linux
test-gateway:
	test/kube/install.sh >/dev/null
	test/gateway/install.sh >/dev/null
	test/chart/install.sh >/dev/null
	CGO_ENABLED=1 go test -race -tags gateway -count=1 -timeout 10m -v ./test/gateway

## race: all tests, under the race detector
race:
	CGO_ENABLED=1 go test -race -timeout 8m ./...

# Packages with tests that the race detector would falsify: counts of
# allocations, and files of their own for builds without it.
ALLOC = $(sort $(dir $(shell grep -rlE --include='*_test.go' 'AllocsPerRun|^//go:build !race' .)))

## alloc: a second pass without the race detector, where allocations are counted
alloc:
	go test -timeout 5m $(ALLOC)

## lint: .golangci.yml; the house's own rules are tests in internal/lint
lint: $(GOLANGCI)
	$(GOLANGCI) run --timeout 8m ./...

$(GOLANGCI):
	@echo "building golangci-lint $(GOLANGCI_VERSION) once, into $(dir $@)"
	GOBIN=$(dir $@) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI_VERSION)

## fmt: gofmt, in place
fmt:
	gofmt -w $$(git ls-files '*.go' ':!third_party')

## build: bin/epp, static
build:
	$(BUILD) -o bin/epp ./cmd/epp

## dist: dist/epp-OS-ARCH for every platform that is shipped
dist:
	GOOS=linux  GOARCH=amd64 $(BUILD) -o dist/epp-linux-amd64  ./cmd/epp
	GOOS=linux  GOARCH=arm64 $(BUILD) -o dist/epp-linux-arm64  ./cmd/epp
	GOOS=darwin GOARCH=arm64 $(BUILD) -o dist/epp-darwin-arm64 ./cmd/epp

## image: dist/epp-image-amd64.tar and -arm64.tar, which docker load reads; needs buildah
image: dist
	test/image/build.sh $(VERSION) amd64
	test/image/build.sh $(VERSION) arm64

## test-image: the image of this machine's kind is built, run and looked at
test-image:
	GOOS=linux $(BUILD) -o dist/epp-linux-$$(go env GOARCH) ./cmd/epp
	test/image/build.sh $(VERSION) $$(go env GOARCH) check

## kustomize: deploy/kustomize/base anew from deploy/chart; needs helm, which is built once
kustomize:
	deploy/kustomize/render.sh

## test-kube: all that meets a real API server, which is built once
test-kube:
	test/kube/install.sh >/dev/null
	test/chart/install.sh >/dev/null
	CGO_ENABLED=1 go test -race -tags kube -count=1 -timeout 20m -v ./test/kube

## fuzz: each fuzz target for FUZZTIME
fuzz:
	@grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sort | \
	while IFS=: read -r file _ func; do \
		echo "$$(dirname $$file) $${func#func }"; \
		go test -run '^$$' -fuzz "^$${func#func }$$" -fuzztime $(FUZZTIME) "$$(dirname $$file)" </dev/null || exit 1; \
	done

## bench: rows 1 to 9 and 11 of the budgets beside twins, floors and peers, in one run and one table, which bench/RESULTS.md keeps; ten minutes
bench:
	CARGO_TARGET_DIR=$(CACHE)/dynamo-bench cargo build --release --locked --manifest-path bench/peers/dynamo/Cargo.toml
	bench/all.sh -dynamo $(CACHE)/dynamo-bench/release/dynamo-bench

## gobench: each Go benchmark whose name matches BENCH
gobench:
	go test -run '^$$' -bench '$(BENCH)' -benchmem ./...

## claims: what is claimed of routing, and what the simulator says of each
claims:
	go run ./bench/policies claims

## policies: the tables of docs/policies.md; half an hour of a core
policies:
	go run ./bench/policies

clean:
	rm -rf bin dist

## bench-check: instructions and allocations of the core against bench/instructions.txt
bench-check:
	bench/instructions.sh
