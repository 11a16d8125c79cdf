#!/usr/bin/env bash
# bundle.sh [--here]: builds what check.sh takes to a machine with a GPU: test programs, benchmark and trainer, stripped, for
# sm_90 and any x86-64-v3 processor, with the headers that a build over there would need: build/gpu-bundle/programs.tar.xz, at
# most 30 MiB. Needs the CUDA Toolkit, but no GPU. cuBLASLt is looked for over there.
# --here: for the GPU of this machine, into build/gpu-native/bin, and packs nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=build/gpu-bundle
architecture=90-real
if [ "${1:-}" = --here ]; then architecture=native; fi
build=build/gpu-$architecture
most_mib=30
nvcc=${CUDACXX:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)}
if [ -z "$nvcc" ]; then
  echo "error: nvcc is not on the path; install the CUDA Toolkit (12 or newer) or set CUDACXX" >&2
  exit 6
fi
programs=(test_cuda test_cuda_training polygrad_bench vit_train)
mkdir -p "$build"
generator=()
if [ ! -f "$build/CMakeCache.txt" ] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
# Flags and launcher are those of tests/cuda/compile.sh, so that the compiler cache serves both.
cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DPOLYGRAD_CUDA=ON -DCMAKE_CUDA_COMPILER="$nvcc" \
  -DCMAKE_CUDA_ARCHITECTURES="$architecture" -DCMAKE_CUDA_COMPILER_LAUNCHER="$PWD/tests/cuda/keep_report.sh" \
  "-DCMAKE_CUDA_FLAGS=-Xptxas=-v" -DPOLYGRAD_WERROR=ON -DPOLYGRAD_ONEDNN=OFF -DPOLYGRAD_TURBOJPEG=OFF \
  -DPOLYGRAD_CPU_ARCH=x86-64-v3 "-DCMAKE_EXE_LINKER_FLAGS=-static-libstdc++ -static-libgcc" \
  ${POLYGRAD_DEPS_DIR:+"-DPOLYGRAD_DEPS_DIR=$POLYGRAD_DEPS_DIR"} >"$build/configure.log" 2>&1 \
  || { cat "$build/configure.log" >&2; exit 1; }
cmake --build "$build" -j "${JOBS:-$(nproc)}" --target "${programs[@]}"
if [ "$architecture" = native ]; then exit 0; fi

packed=$(mktemp -d)
trap 'rm -rf "$packed"' EXIT
mkdir -p "$packed/bin" "$packed/headers" "$folder"
for program in "${programs[@]}"; do strip -o "$packed/bin/$program" "$build/bin/$program"; done
# The headers, as POLYGRAD_DEPS_DIR wants them, from where this build found them.
for name in EIGEN:Eigen FMT:fmt JSON:nlohmann CLI11:CLI DOCTEST:doctest STB:stb_image.h STB:stb_image_write.h; do
  from=$(sed -nE "s/^POLYGRAD_${name%%:*}_INCLUDE_DIR:PATH=//p" "$build/CMakeCache.txt")
  cp -rL "$from/${name#*:}" "$packed/headers/"
done
# The programs hold the same kernels: the whole of it lies within xz's largest window.
tar -C "$packed" -c . | xz -9 >"$folder/programs.tar.xz"
size=$(du -sm "$folder" | cut -f1)
if [ "$size" -gt "$most_mib" ]; then
  echo "error: $folder has $size MiB; expected at most $most_mib" >&2
  exit 1
fi
echo "$folder: $size MiB; take it along with the tree, and run tests/gpu/check.sh there"
