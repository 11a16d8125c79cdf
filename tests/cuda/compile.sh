#!/usr/bin/env bash
# compile.sh BUILD_DIR: compiles every .cu of the tree for sm_90 with nvcc, warnings being errors, and links the check of
# the shared device headers. Needs the CUDA Toolkit, but no GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$1
nvcc=${CUDACXX:-$(command -v nvcc || true)}
if [ -z "$nvcc" ]; then
  echo "error: nvcc is not on the path; install the CUDA Toolkit (12 or newer) or set CUDACXX" >&2
  exit 6
fi
"$nvcc" --version | tail -n 2
mkdir -p "$build"
flags=(-std=c++20 -gencode "arch=compute_90,code=sm_90" -O3 --fmad=false --Werror all-warnings -Xcompiler "-Wall,-Wextra" -I.)

compile() {
  local object=$build/${1//\//_}.o
  echo "nvcc $1"
  "$nvcc" "${flags[@]}" -c "$1" -o "$object"
}
objects=()
mapfile -t sources < <(find engine ops tests/cuda -name '*.cu' | sort)
for source in "${sources[@]}"; do
  compile "$source"
  objects+=("$build/${source//\//_}.o")
done
"$nvcc" "${flags[@]}" "${objects[@]}" -o "$build/device_headers"
echo "${#sources[@]} .cu files compiled and linked for sm_90"
