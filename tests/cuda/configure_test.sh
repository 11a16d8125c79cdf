#!/usr/bin/env bash
# configure_test.sh: a configuration that asks for CUDA where there is no nvcc must fail, and say what to set.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

if CUDACXX=$build/no/nvcc cmake -S . -B "$build" -DPOLYGRAD_CUDA=ON >"$build/log" 2>&1; then
  cat "$build/log"
  echo "error: the configuration succeeded without a CUDA compiler" >&2
  exit 1
fi
said=$(tr -s ' \n' ' ' <"$build/log")
for expected in "POLYGRAD_CUDA=ON, but no CUDA compiler was found" "-DCMAKE_CUDA_COMPILER=" "CUDACXX" "-DPOLYGRAD_CUDA=OFF"; do
  if [[ $said != *"$expected"* ]]; then
    cat "$build/log"
    echo "error: the message does not say \"$expected\"" >&2
    exit 1
  fi
done
echo "refused, with what to set"
