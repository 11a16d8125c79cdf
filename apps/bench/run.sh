#!/usr/bin/env bash
# Measures what the speed table shows (make bench): our lines go to build/bench/polygrad.jsonl, and stand beside those of
# the peers where `make peers` has left some. THREADS=n and PAIRS=n change the defaults.
set -euo pipefail
cd "$(dirname "$0")/../.."
bench=build/bin/polygrad_bench
out=build/bench
threads=${THREADS:-$(nproc)}
[ -x "$bench" ] || { echo "error: $bench is not there; run make build" >&2; exit 2; }
mkdir -p "$out"
: >"$out/polygrad.jsonl"
while read -r line; do
  [ -n "$line" ] || continue
  # shellcheck disable=SC2086
  "$bench" $line --threads "$threads" ${PAIRS:+--pairs "$PAIRS"} </dev/null | tee -a "$out/polygrad.jsonl" >/dev/null
done <<'LIST'
gemm --m 8224 --k 192 --n 576
gemm --trans-b --m 8224 --k 192 --n 768
gemm --trans-a --m 576 --k 8224 --n 192
attention --phi x3 --path tiled --batch 32 --heads 3 --tokens 257 --head-dim 64
attention --phi softmax --path tiled --batch 32 --heads 3 --tokens 257 --head-dim 64
attention --phi x3 --path tiled --batch 4 --heads 2 --tokens 4096 --head-dim 32
attention --phi softmax --path tiled --batch 4 --heads 2 --tokens 4096 --head-dim 32
attention --phi x --path linear --batch 4 --heads 2 --tokens 4096 --head-dim 32
vit_step --model vit_tiny --image 64 --patch 4 --classes 200 --batch 32 --phi x3 --scale 16
vit_step --model vit_tiny --image 64 --patch 4 --classes 200 --batch 32 --phi softmax
op --name gelu
op --name layer_norm
op --name softmax --shape 8224x257
LIST
echo
python3 apps/bench/compare.py "$out/polygrad.jsonl" "$out/peers.jsonl"
