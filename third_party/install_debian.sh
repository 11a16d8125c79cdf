#!/usr/bin/env bash
# Installs the Debian/Ubuntu packages that polygrad is built with. Quick, and without apt, where nothing is missing.
set -euo pipefail

packages=(
  libeigen3-dev nlohmann-json3-dev libstb-dev libcli11-dev libfmt-dev doctest-dev  # headers
  libdnnl-dev libturbojpeg0-dev                                                    # optional libraries
  ninja-build ccache                                                               # to build
  gnuplot-nox dataset-fashion-mnist                                                # figures; data of `make train`
)
# Of these, any version that is on the path will do.
command -v cmake >/dev/null || packages+=(cmake)
command -v g++ >/dev/null || command -v clang++ >/dev/null || packages+=(g++)
command -v clang-format >/dev/null || packages+=(clang-format)
command -v python3 >/dev/null || packages+=(python3)
command -v git >/dev/null || packages+=(git)

missing=()
for package in "${packages[@]}"; do
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true) == installed ]] || missing+=("$package")
done
((${#missing[@]})) || exit 0

echo "installing: ${missing[*]}"
as_root=()
if [[ $(id -u) != 0 ]]; then
  command -v sudo >/dev/null || { echo "error: not root and no sudo; install these packages: ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
"${as_root[@]}" apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
