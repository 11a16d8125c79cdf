# What a user types. `make` alone lists the targets; docs/architecture.md says what is behind them.
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
SHELL := /bin/bash

JOBS ?= $(shell nproc)
CUDA ?= 0
# The goals of one command depend on each other's effects (packages, then configuration, then the build): one at a time.
.NOTPARALLEL:
# A fresh build folder gets Ninja where it is there by then (setup may just have installed it); an old one keeps what it has.
CONFIGURE = cmake $$([ -f build/CMakeCache.txt ] || ! command -v ninja >/dev/null || echo -G Ninja) \
  -DPOLYGRAD_CUDA=$(if $(filter 1,$(CUDA)),ON,OFF)
# Sample data and expected values that are not part of the repository; tests say so where they are missing.
SHARED := $(wildcard ../shared)
TEST_DATA := $(CURDIR)/build/testdata
export POLYGRAD_TEST_DATA := $(or $(POLYGRAD_TEST_DATA),$(if $(wildcard $(SHARED)/data),$(TEST_DATA)))
export POLYGRAD_GOLDEN := $(or $(POLYGRAD_GOLDEN),$(if $(wildcard $(SHARED)/golden),$(abspath $(SHARED)/golden)))

.PHONY: help
help:  ## this list
	@sed -nE 's/^([a-z-]+):.*  ## (.*)/\1\t\2/p' Makefile | awk -F '\t' '{printf "  make %-14s %s\n", $$1, $$2}'
	@echo "  CUDA=1 in front of a target builds the GPU backend too; JOBS=n sets the number of compilers."

.PHONY: setup
setup:  ## install the packages that are missing (Debian, Ubuntu)
	@third_party/install_debian.sh

.PHONY: configure
configure:
	@mkdir -p build
	@$(CONFIGURE) -S . -B build -DCMAKE_BUILD_TYPE=Release $(CMAKE_ARGS) >build/configure.log 2>&1 \
	  || { cat build/configure.log; exit 1; }

.PHONY: build
build: configure  ## release build of everything, in build/; programs in build/bin/
	@cmake --build build -j $(JOBS)

.PHONY: train
train: setup configure  ## train a small vision transformer on Fashion-MNIST, in about five minutes
	@cmake --build build -j $(JOBS) --target vit_train
	@build/bin/vit_train --config fashion_mnist --out runs/fashion_mnist --resume auto
	@echo "run folder:  runs/fashion_mnist (metrics.jsonl, metrics.csv, norms.csv, config.json)"
	@if ls runs/fashion_mnist/plots/*.svg >/dev/null 2>&1; then echo "plots:       runs/fashion_mnist/plots/"; fi
	@echo "checkpoint:  runs/fashion_mnist/checkpoints/best"
	@echo "evaluate it: build/bin/vit_train --eval runs/fashion_mnist/checkpoints/best"

.PHONY: testdata
testdata:
	@if [ -x "$(SHARED)/data/unpack.sh" ]; then \
	  "$(SHARED)/data/unpack.sh" "$(TEST_DATA)" safetensors-samples mnist-train60000 cifar-10-batches-bin \
    odd-images tiny-imagenet-200-val tiny-imagenet-200-train-i000 lra-samples; fi

.PHONY: test
test: setup build testdata  ## build, and run the whole test suite
	@tests/support/run_suite.sh build -j $(JOBS) $(CTEST_ARGS)

.PHONY: asan
asan: setup testdata  ## the suite under the address and undefined-behaviour sanitizers, in build-asan/
	@cmake --preset asan >/dev/null && cmake --build build-asan -j $(JOBS)
	@tests/support/run_suite.sh build-asan -j $(JOBS) -LE slow-sanitized $(CTEST_ARGS)

.PHONY: tsan
tsan: setup testdata  ## the suite of engine, ops, data and training under the thread sanitizer, in build-tsan/
	@cmake --preset tsan >/dev/null
	@cmake --build build-tsan -j $(JOBS) --target test_engine test_ops test_data test_training
	@tests/support/run_suite.sh build-tsan -j $(JOBS) -L threads -LE slow-sanitized $(CTEST_ARGS)

.PHONY: lint
lint:  ## layers, file sizes, headers, formatting, scripts
	@python3 tests/lint/lint.py

.PHONY: format
format:  ## clang-format over our sources
	@git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format -i

.PHONY: bench
bench: build  ## measure, in turns with the peers that are there, into docs/results/speed.md; QUICK=1 is shorter
	@python3 apps/bench/run.py

.PHONY: peers
peers:  ## find PyTorch and JAX, or install them in build/, and the environment that is fastest here
	@apps/bench/peers/run.sh

.PHONY: docs
docs: configure  ## compile every C++ snippet of README and docs/, and check their links
	@python3 tests/docs/snippets.py check
	@cmake --build build -j $(JOBS) --target polygrad_docs_snippets

.PHONY: cuda-compile
cuda-compile:  ## compile every .cu for sm_90 with nvcc; needs no GPU
	@tests/cuda/compile.sh build/cuda

.PHONY: gpu-bundle
gpu-bundle:  ## programs for a machine with a GPU, in build/gpu-bundle, for tests/gpu/check.sh there; needs nvcc
	@tests/gpu/bundle.sh

.PHONY: gpu-check-cpu
gpu-check-cpu: configure  ## tests/gpu/check.sh, all of it on the CPU, in less than three minutes
	@cmake --build build -j $(JOBS) --target test_cuda host_polygrad_bench host_vit_train
	@tests/gpu/check.sh --cpu

.PHONY: install
install: configure  ## install libraries, headers and CMake package: make install PREFIX=...
	@test -n "$(PREFIX)" || { echo "error: say where: make install PREFIX=/some/folder" >&2; exit 2; }
	@cmake --build build -j $(JOBS) --target polygrad_libraries
	@cmake --install build --prefix "$(abspath $(PREFIX))"
