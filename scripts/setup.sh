#!/usr/bin/env bash
# Makes a fresh Debian (12 and 13) or Ubuntu (24.04) machine ready to build aerie: distribution packages, LibTorch, and, where there
# is a GPU but no CUDA toolkit, the CUDA compiler. Everything already there is left alone; a second run does nothing.
#
#   scripts/setup.sh                install what is missing
#   scripts/setup.sh --checks       install also what the sanitizers, fuzz targets and scripts/tidy need: clang 14, where the distribution has it
#   scripts/setup.sh --cuda         fetch the GPU libraries and compiler also where no GPU is seen
#   scripts/setup.sh --print-torch  only print the folder of torch that a build should use
#   scripts/setup.sh --print-nvcc   only print the CUDA compiler that a build should use (empty: none)
#   scripts/setup.sh --print-archs  only print the CUDA architectures to build for
#
# Environment: AERIE_CACHE   where downloads are kept (default: aerie/ in the user's cache folder)
#              AERIE_TORCH   folder of an installed torch 2.11 (the one with include/ and lib/); nothing is fetched
#              AERIE_DEPS    folder made by scripts/bundle-deps; no distribution package is installed
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cache="${AERIE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/aerie}"
pins="$here/torch-packages.txt"
torch_home="$cache/torch-2.11.0-cp311"

say() { printf '[setup] %s\n' "$*" >&2; }
fail() { printf '[setup] error: %s\n' "$*" >&2; exit 1; }

# --- what is there ---------------------------------------------------------------------------------------------------------
# The GPU counts as present when the driver answers; the device node alone also counts, so that a broken driver is not
# mistaken for a machine without a GPU.
have_gpu() { [ -e /dev/nvidia0 ] || { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; }; }

# Any CUDA 13 compiler will do (libtorch is built with 13.0; an older toolkit would bring a second CUDA runtime into the process).
find_nvcc() {
  local nvcc
  for nvcc in "${CUDA_HOME:-/nonexistent}/bin/nvcc" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc \
    "$torch_home/nvidia/cu13/bin/nvcc"; do
    if [ -x "$nvcc" ] && "$nvcc" --version 2>/dev/null | grep -q 'release 13\.'; then echo "$nvcc"; return; fi
  done
}

is_torch_211() {
  grep -q '^#define TORCH_VERSION_MINOR 11$' "$1/include/torch/headeronly/version.h" 2>/dev/null &&
    grep -q '^#define TORCH_VERSION_MAJOR 2$' "$1/include/torch/headeronly/version.h"
}

# The folder of torch to build against; empty when it has to be fetched.
find_torch() {
  if [ -n "${AERIE_TORCH:-}" ]; then
    is_torch_211 "$AERIE_TORCH" || fail "AERIE_TORCH=$AERIE_TORCH holds no torch 2.11 (looked for include/torch/headeronly/version.h)"
    echo "$AERIE_TORCH"; return
  fi
  local installed
  installed="$(python3 -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")' 2>/dev/null || true)"
  if [ -n "$installed" ] && is_torch_211 "$installed"; then echo "$installed"; return; fi
  if [ -e "$torch_home/.cpu-done" ]; then echo "$torch_home/torch"; fi
}

cuda_archs() {
  local caps
  caps="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. ' | sort -u || true)"
  case "$caps" in *[!0-9[:space:]]*|'') echo "90a-real"; return ;; esac
  echo "$caps" | sed -e 's/^90$/90a/' -e 's/$/-real/' | paste -sd ';'
}

case "${1:-}" in
  --print-torch) find_torch; exit 0 ;;
  --print-nvcc) find_nvcc; exit 0 ;;
  --print-archs) cuda_archs; exit 0 ;;
  --checks|--cuda|'') ;;
  *) fail "unknown option $1 (see the head of $0)" ;;
esac
want_cuda=no
if [ "${1:-}" = --cuda ] || have_gpu; then want_cuda=yes; fi

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || fail "aerie is built on x86-64 Linux; this is $(uname -s)-$(uname -m)"

# --- distribution packages -------------------------------------------------------------------------------------------------
packages=(build-essential cmake ninja-build ccache mold pkg-config git ca-certificates python3
  libfmt-dev libspdlog-dev libcli11-dev nlohmann-json3-dev libyaml-dev zlib1g-dev libbz2-dev liblzma-dev libxxhash-dev
  libsndfile1-dev libflac-dev libsoxr-dev libjpeg-dev libpng-dev libsimdjson-dev libgtest-dev libbenchmark-dev)
# Checks of the sources: other versions of clang judge differently, and newer distributions do not have this one.
optional=(clang-format-14)
if [ "${1:-}" = --checks ]; then optional+=(clang-14 clang-tidy-14 libclang-rt-14-dev); fi

# Those of the packages that are not installed.
missing_packages() {
  local package
  for package in "$@"; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || echo "$package"
  done
}

# Those of the packages that the distribution has, by the package lists of this machine.
known_packages() {
  local package
  for package in "$@"; do
    apt-cache --quiet=0 policy "$package" 2>/dev/null | grep -q 'Candidate: [^(]' && echo "$package"
  done
  return 0
}

# install_packages REQUIRED... [-- OPTIONAL...]
install_packages() {
  local required=() missing extra sudo=""
  while [ $# -gt 0 ] && [ "$1" != -- ]; do required+=("$1"); shift; done
  mapfile -t missing < <(missing_packages "${required[@]}")
  mapfile -t extra < <(missing_packages "${@:2}")
  if [ ${#missing[@]} -eq 0 ]; then
    mapfile -t extra < <(known_packages "${extra[@]}")
    [ ${#extra[@]} -eq 0 ] && return
  fi
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
      [ ${#missing[@]} -eq 0 ] && return
      fail "these packages are missing and there is no sudo: ${missing[*]}"
    fi
    sudo=sudo
  fi
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  mapfile -t extra < <(known_packages "${extra[@]}")
  missing+=("${extra[@]}")
  say "installing ${missing[*]}"
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}

if [ -n "${AERIE_DEPS:-}" ]; then
  [ -d "$AERIE_DEPS/include" ] || fail "AERIE_DEPS=$AERIE_DEPS is not a folder made by scripts/bundle-deps (no include/)"
elif command -v apt-get >/dev/null; then
  install_packages "${packages[@]}" -- "${optional[@]}"
else
  say "no apt-get here: expecting the libraries in the system, or AERIE_DEPS (scripts/bundle-deps)"
fi

# --- torch and CUDA wheels -------------------------------------------------------------------------------------------------
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9

# fetch GROUP: downloads, checks and unpacks the wheels of one group of torch-packages.txt, once.
fetch() {
  local group="$1" requirements downloads
  [ -e "$torch_home/.$group-done" ] && return
  if ! python3 -m pip --version >/dev/null 2>&1; then
    command -v apt-get >/dev/null && [ -z "${AERIE_DEPS:-}" ] || fail "pip is needed to fetch LibTorch; or set AERIE_TORCH"
    install_packages python3-pip
  fi
  downloads="$(mktemp -d "$cache/downloads.XXXXXX")"
  # shellcheck disable=SC2064
  trap "rm -rf '$downloads'" EXIT
  requirements="$downloads/requirements.txt"
  awk -v g="$group" '$1 == g { print $2 "==" $3 " --hash=sha256:" $4 }' "$pins" > "$requirements"
  say "fetching $(awk -v g="$group" '$1 == g { printf "%s %s  ", $2, $3 }' "$pins")"
  local platforms=() p
  for p in 2_28 2_27 2_25 2_18 2_17 2_12 2_5; do platforms+=(--platform "manylinux_${p}_x86_64"); done
  for p in 2014 2010 1; do platforms+=(--platform "manylinux${p}_x86_64"); done
  # pip itself checks the hashes. One fixed Python version: its wheel holds the same libraries as all the others.
  python3 -m pip download -q --no-deps --require-hashes --only-binary=:all: --python-version 3.11 --implementation cp \
    --abi cp311 --abi none "${platforms[@]}" -d "$downloads" -r "$requirements" >&2 ||
    fail "the wheels could not be fetched or do not match their hashes. Check package access, or set AERIE_TORCH to an installed torch 2.11."
  mkdir -p "$torch_home"
  python3 - "$torch_home" "$downloads" <<'PYTHON'
import os, sys, zipfile
home, downloads = sys.argv[1:]
for name in sorted(os.listdir(downloads)):
    if not name.endswith(".whl"):
        continue
    with zipfile.ZipFile(os.path.join(downloads, name)) as wheel:
        for member in wheel.infolist():
            path = member.filename
            if ".." in path.split("/") or path.startswith("/"):
                sys.exit("refused: %s in %s" % (path, name))
            # Of torch only headers and libraries; nothing of its Python side.
            if path.startswith("torch"):
                if not path.startswith(("torch/include/", "torch/lib/")) or path.endswith("libtorch_python.so"):
                    continue
            elif not path.startswith("nvidia/"):
                continue
            wheel.extract(member, home)
            if "/bin/" in path:
                os.chmod(os.path.join(home, path), 0o755)
PYTHON
  touch "$torch_home/.$group-done"
  rm -rf "$downloads"
  trap - EXIT
}

# The compiler's wheels carry versioned libraries only; its linker step looks for the plain names.
link_plain_names() {
  local lib
  for lib in "$torch_home"/nvidia/cu13/lib/lib*.so.*; do
    [ -e "$lib" ] && ln -sfn "$(basename "$lib")" "${lib%%.so.*}.so"
  done
  ln -sfn lib "$torch_home/nvidia/cu13/lib64"
}

torch="$(find_torch)"
if [ -z "$torch" ]; then
  fetch cpu
  torch="$torch_home/torch"
fi
if [ "$want_cuda" = yes ]; then
  if [ "$torch" = "$torch_home/torch" ]; then fetch gpu; fi
  if [ -z "$(find_nvcc)" ]; then
    say "a GPU and no CUDA toolkit: fetching the compiler"
    if [ ! -e "$torch_home/.cpu-done" ]; then fetch cpu; fi
    fetch compiler
    link_plain_names
  fi
fi
say "torch: $torch"
say "cuda:  $(find_nvcc | grep . || echo 'no toolkit: CPU build')"
