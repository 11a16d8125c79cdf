#!/usr/bin/env bash
# keep_report.sh NVCC ARGUMENTS…: runs the compiler (through ccache where it is installed) and keeps what ptxas says about
# the kernels, with the seconds that it took, in a file beside the object.
set -uo pipefail
object=
previous=
for argument in "$@"; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
launcher=$(command -v ccache || true)
[ -n "$object" ] || exec ${launcher:+"$launcher"} "$@"
start=$(date +%s.%N)
CCACHE_NOHASHDIR=1 ${launcher:+"$launcher"} "$@" 2>"$object.ptxas"
status=$?
grep -vE '^ptxas info|bytes stack frame|^$' "$object.ptxas" >&2
echo "seconds $(date +%s.%N) $start" >>"$object.ptxas"
exit $status
