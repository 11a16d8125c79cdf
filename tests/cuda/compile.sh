#!/usr/bin/env bash
# compile.sh BUILD_DIR: compiles the GPU backend for sm_90, warnings being errors, says what each file's kernels take of the
# machine, and links and runs the program that lists the kernel tables. Needs the CUDA Toolkit, but no GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$1
nvcc=${CUDACXX:-$(command -v nvcc || true)}
if [ -z "$nvcc" ]; then
  echo "error: nvcc is not on the path; install the CUDA Toolkit (12 or newer) or set CUDACXX" >&2
  exit 6
fi
"$nvcc" --version | tail -n 2
start=$SECONDS
mkdir -p "$build"
generator=()
if [ ! -f "$build/CMakeCache.txt" ] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DPOLYGRAD_CUDA=ON -DCMAKE_CUDA_COMPILER="$nvcc" \
  -DCMAKE_CUDA_ARCHITECTURES=90-real -DCMAKE_CUDA_COMPILER_LAUNCHER="$PWD/tests/cuda/keep_report.sh" \
  "-DCMAKE_CUDA_FLAGS=-Xptxas=-v --no-compress" -DPOLYGRAD_WERROR=ON -DPOLYGRAD_ONEDNN=OFF -DPOLYGRAD_COMPONENTS="engine;ops" \
  -DPOLYGRAD_BUILD_TESTS=OFF -DPOLYGRAD_BUILD_APPS=OFF >"$build/configure.log" 2>&1 \
  || { cat "$build/configure.log"; exit 1; }
cmake --build "$build" -j "${JOBS:-$(nproc)}" --target polygrad_cuda_check
python3 tests/cuda/report.py "$build"
"$build/bin/cuda_tables"
"$build/bin/device_headers"
echo "compiled, linked and listed in $((SECONDS - start)) s"
