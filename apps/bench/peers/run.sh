#!/usr/bin/env bash
# Prepares the peers (make peers): finds an interpreter that has PyTorch (POLYGRAD_PEER_PYTHON names one), or makes a virtual
# environment in build/peers/venv with PyTorch and JAX, writes its path to build/peers/python, where `make bench` looks, and
# finds PyTorch's best environment on this machine by measurement (tune.py, some minutes). THREADS=n changes the default.
set -euo pipefail
cd "$(dirname "$0")/../../.."
folder=build/peers
threads=${THREADS:-$(nproc)}
mkdir -p "$folder"

python=""
for candidate in "${POLYGRAD_PEER_PYTHON:-}" "$folder/venv/bin/python" python3 /usr/bin/python3; do
  if [ -n "$candidate" ] && "$candidate" -c 'import torch' 2>/dev/null; then
    python=$(command -v "$candidate")
    break
  fi
done
if [ -z "$python" ]; then
  echo "no interpreter here has PyTorch; making a virtual environment in $folder/venv (a large download)" >&2
  python3 -m venv "$folder/venv"
  "$folder/venv/bin/python" -m pip install --quiet torch numpy
  "$folder/venv/bin/python" -m pip install --quiet jax || echo "JAX can't be installed here: the table will say so" >&2
  "$folder/venv/bin/python" -m pip install --quiet intel-openmp || true # one of the environments that are tried
  python=$folder/venv/bin/python
fi
echo "$python" >"$folder/python"
"$python" -c 'import torch; print("PyTorch", torch.__version__, torch.backends.cpu.get_cpu_capability())'
"$python" -c 'import jax; print("JAX", jax.__version__)' 2>/dev/null || echo "JAX: not there; the table will say so"
command -v g++ >/dev/null || echo "g++: not there; torch.compile needs a C++ compiler"
"$python" apps/bench/peers/tune.py --threads "$threads"
