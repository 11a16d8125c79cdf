#!/usr/bin/env bash
# run_suite.sh BUILD_DIR [ctest arguments]: runs ctest, then lists each skipped test with its reason. Fails where a test
# fails, or where one was skipped for a reason that is not allowed.
#
# ctest's own way of skipping is not used: it would count a file as skipped, whatever else failed in it.
set -uo pipefail
build=$1; shift

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:strict_string_checks=1:allocator_may_return_null=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export TSAN_OPTIONS=${TSAN_OPTIONS:-suppressions=$here/tsan.supp:history_size=7}

ctest --test-dir "$build" --output-on-failure --no-tests=error "$@"
status=$?

# One line a skip: the test's name, and why.
skips=$(awk '
  /^[0-9]+\/[0-9]+ Test(ing)?: / { test = $NF }
  /\[skip\] / { sub(/.*\[skip\] /, ""); print "  " test ": " $0 }' "$build/Testing/Temporary/LastTest.log" | sort -u)
if [ -n "$skips" ]; then
  echo "skipped:"
  echo "$skips"
  if refused=$(grep -vE ': (no GPU|no bf16 units|sample data missing|kernel forbids mounts|no TensorBoard)' <<<"$skips"); then
    echo "error: skipped for a reason that is not allowed:" >&2
    echo "$refused" >&2
    status=1
  fi
fi
exit "$status"
