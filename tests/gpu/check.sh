#!/usr/bin/env bash
# check.sh [--cpu] [--only NAME] [--json FILE] …: proves and measures the GPU backend where a GPU is; see check.py.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(command -v python3 || true)
if [ -z "$python" ]; then
  echo "error: python3 is not on the path; the check, and PyTorch beside it, need one" >&2
  exit 6
fi
exec "$python" tests/gpu/check.py "$@"
