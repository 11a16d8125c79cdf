#!/usr/bin/env bash
# bundle.sh [FOLDER [ARCHITECTURE]]: builds what check.sh takes to a machine with a GPU: test programs, benchmark and trainer,
# stripped, for sm_90 and any x86-64-v3 processor, with the headers that a build over there would need, into FOLDER
# (build/gpu-bundle). Fails above 30 MiB. Needs the CUDA Toolkit, but no GPU. cuBLASLt is looked for over there.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-build/gpu-bundle}
architecture=${2:-90-real}
build=build/gpu-$architecture
most_mib=30
nvcc=${CUDACXX:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)}
if [ -z "$nvcc" ]; then
  echo "error: nvcc is not on the path; install the CUDA Toolkit (12 or newer) or set CUDACXX" >&2
  exit 6
fi
programs=(test_cuda test_cuda_training polygrad_bench vit_train)
mkdir -p "$build" "$folder/bin"
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
for program in "${programs[@]}"; do strip -o "$folder/bin/$program" "$build/bin/$program"; done

# The headers, as POLYGRAD_DEPS_DIR wants them, from where this build found them.
headers=$(mktemp -d)
trap 'rm -rf "$headers"' EXIT
for name in EIGEN:Eigen FMT:fmt JSON:nlohmann CLI11:CLI DOCTEST:doctest STB:stb_image.h STB:stb_image_write.h; do
  from=$(sed -nE "s/^POLYGRAD_${name%%:*}_INCLUDE_DIR:PATH=//p" "$build/CMakeCache.txt")
  cp -rL "$from/${name#*:}" "$headers/"
done
tar -C "$headers" -cJf "$folder/headers.tar.xz" .
size=$(du -sm "$folder" | cut -f1)
du -h "$folder"/bin/* "$folder/headers.tar.xz"
if [ "$size" -gt "$most_mib" ]; then
  echo "error: $folder has $size MiB; expected at most $most_mib" >&2
  exit 1
fi
echo "$folder: $size MiB; take it along with the tree, and run tests/gpu/check.sh there"
