#!/usr/bin/env bash
# embedding.sh CASE BUILD_DIR: builds and runs the application outside the tree; ctest runs each case.
#
#   find_package   BUILD_DIR is installed, the prefix moved, the application finds it there
#   static, shared add_subdirectory of engine, ops and models inside the application's own tree
#   symbols        what our libraries define: nothing of Eigen, stb, {fmt} or JSON under its own name, and no inline
#                  function compiled for this machine's instruction set that code outside the kernels shares; and no
#                  call that changes signal handlers or the locale, or ends the process
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(cd "$here/../.." && pwd)
case=$1 build=$2
work=$build/embedding/$case
mkdir -p "$work"
die() { echo "error: $*"; exit 1; }

launcher=()
if command -v ccache >/dev/null; then
  launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_BASEDIR=$source CCACHE_NOHASHDIR=1
fi
generator=()
if command -v ninja >/dev/null; then generator=(-G Ninja); fi

configure_and_build() {  # configure_and_build FOLDER [cmake arguments]
  if ! { cmake "${generator[@]}" "${launcher[@]}" -S "$here/$1" -B "$work/app" "${@:2}" \
    && cmake --build "$work/app" --target app -j 2; } >"$work/log" 2>&1; then
    tail -n 30 "$work/log"
    die "the application does not build"
  fi
}

run_app() {
  "$work/app/app" >"$work/out" 2>"$work/err" || { cat "$work/out"; tail -n 20 "$work/err"; die "the application fails"; }
  [ -z "$(cat "$work/out" "$work/err")" ] || { head -n 3 "$work/out" "$work/err"; die "the library prints"; }
}

case $case in
  find_package)
    rm -rf "$work/first" "$work/moved" "$work/app"
    cmake --install "$build" --prefix "$work/first" >"$work/log" || { tail -n 5 "$work/log"; die "the installation fails"; }
    mv "$work/first" "$work/moved"
    ! leak=$(grep -rlE --include='*.cmake' -e '-march=|-ffp-contract|-Wall|-std=' -e "$source" -e "$work/first" "$work/moved") \
      || die "flags or paths leak in $leak"
    configure_and_build find_package -DCMAKE_PREFIX_PATH="$work/moved" -DCMAKE_BUILD_TYPE=Debug
    run_app
    # Each installed header compiles alone, with nothing but the language.
    while read -r header; do
      echo "#include <$header>" | "${CXX:-c++}" -std=c++20 -Wall -Wextra -Werror -I"$work/moved/include" -fsyntax-only \
        -MD -MF "$work/deps" -x c++ - || die "$header does not compile alone"
      ! grep -E '/(eigen3|nlohmann|fmt|CLI|stb|doctest)/|dnnl|cuda' "$work/deps" || die "$header brings a third-party header"
    done < <(cd "$work/moved/include" && find polygrad -name '*.h')
    ;;
  static | shared)
    configure_and_build subdirectory -DPOLYGRAD_SOURCE="$source" -DBUILD_SHARED_LIBS="$([ "$case" = shared ] && echo ON || echo OFF)"
    run_app
    if [ "$case" = shared ]; then
      for library in "$work"/app/polygrad/*/libpolygrad_*.so; do
        foreign=$(nm -DC --defined-only "$library" | cut -d ' ' -f 3- | grep -vE 'polygrad(_fmt)?::' | head -n 3 || true)
        [ -z "$foreign" ] || die "$library exports $foreign"
      done
    fi
    ;;
  symbols)
    mapfile -t libraries < <(find "$build" -name 'libpolygrad_*.a' -not -path '*/embedding/*')
    [ "${#libraries[@]}" -ge 1 ] || die "no static libraries in $build"
    ! nm -C --defined-only "${libraries[@]}" 2>/dev/null | grep -E ' [A-Zuvw] (Eigen|stbi|fmt|nlohmann|CLI)(::|_)' | head -n 3 | grep . \
      || die "third-party names in our libraries"
    # The process is the application's: no library touches its signal handlers, its locale or its end.
    ! nm -u "${libraries[@]}" 2>/dev/null \
      | grep -E ' U (__)?(sigaction|signal|sigset|bsd_signal|sysv_signal|pthread_sigmask|sigprocmask|sigwait.*|setlocale|atexit|exit|_exit|quick_exit)$' \
      | sort | uniq -c | grep . || die "our libraries touch what belongs to the process"
    # A function that the kernels' files and others both emit: the linker keeps one, and it may need AVX-512.
    kernels=$(find "$build/ops/CMakeFiles/polygrad_ops_cpu.dir" -name '*.o')
    # shellcheck disable=SC2086
    nm --defined-only $kernels | awk '$2 ~ /^[WVu]$/ { print $3 }' | sort -u >"$work/kernels"
    find "$build" -name '*.o' -not -path '*/polygrad_ops_cpu.dir/*' -not -path '*/embedding/*' -print0 \
      | xargs -0 nm --defined-only 2>/dev/null | awk '$2 ~ /^[WVu]$/ { print $3 }' | sort -u >"$work/others"
    both=$(comm -12 "$work/kernels" "$work/others" | grep -v '^DW\.ref\.' | c++filt | head -n 5 || true)
    [ -z "$both" ] || die "compiled for one instruction set, but shared: $both"
    # Nor anything of the standard library, which a host has too.
    standard=$(c++filt <"$work/kernels" | grep -E '^(void |bool |int )?(std|__gnu_cxx)::' | head -n 5 || true)
    [ -z "$standard" ] || die "the kernels' files emit inline functions of the standard library: $standard"
    ;;
  *) die "no case '$case'" ;;
esac
