#!/usr/bin/env bash
# Measures the peers (make peers): finds an interpreter that has torch (POLYGRAD_PEER_PYTHON names one), or makes a
# virtual environment in build/peers with the newest torch, and leaves its lines in build/bench/peers.jsonl, where
# `make bench` looks for them. THREADS=n and PAIRS=n change the defaults.
set -euo pipefail
cd "$(dirname "$0")/../../.."
out=build/bench
venv=build/peers
threads=${THREADS:-$(nproc)}

python=""
for candidate in "${POLYGRAD_PEER_PYTHON:-}" "$venv/bin/python" python3 /usr/bin/python3; do
  if [ -n "$candidate" ] && "$candidate" -c 'import torch' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "no interpreter here has torch; making a virtual environment in $venv (a large download)" >&2
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet torch numpy
  python=$venv/bin/python
fi
compile=""
if "$python" -c 'import sys, torch; sys.exit(not hasattr(torch, "compile"))'; then compile=yes; fi

mkdir -p "$out"
: >"$out/peers.jsonl"
measure() {
  echo "peer: $*" >&2
  "$python" "apps/bench/peers/$1.py" "${@:2}" --threads "$threads" ${PAIRS:+--pairs "$PAIRS"} </dev/null | tee -a "$out/peers.jsonl"
}
measure gemm --m 8224 --k 192 --n 576
measure gemm --trans-b --m 8224 --k 192 --n 768
measure gemm --trans-a --m 576 --k 8224 --n 192
for phi in x3 softmax; do
  for environment in best default; do
    measure attention --phi $phi --batch 32 --heads 3 --tokens 257 --head-dim 64 --environment $environment
    measure attention --phi $phi --batch 4 --heads 2 --tokens 4096 --head-dim 32 --environment $environment
    measure vit_step --phi $phi --image 64 --patch 4 --classes 200 --batch 32 --scale 16 --environment $environment
  done
done
measure attention --phi x --linear --batch 4 --heads 2 --tokens 4096 --head-dim 32
if [ -n "$compile" ]; then
  measure attention --phi softmax --sdpa --batch 32 --heads 3 --tokens 257 --head-dim 64
  measure attention --phi softmax --sdpa --batch 4 --heads 2 --tokens 4096 --head-dim 32
  measure vit_step --phi softmax --sdpa --image 64 --patch 4 --classes 200 --batch 32
  for phi in x3 softmax; do
    measure vit_step --phi $phi --compile --image 64 --patch 4 --classes 200 --batch 32 --scale 16
  done
fi
