# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# What the scripts share: where the tree is, how to install what is missing, how to configure and build a preset.
# To be sourced, after `set -euo pipefail`. Everything here speaks on stderr, so that a program's stdout stays its
# own.

plateau_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
plateau_jobs="$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)"

say() { printf '%s\n' "$*" >&2; }

die() {
  say "error: $*"
  exit 1
}

have_command() { command -v "$1" >/dev/null 2>&1; }

# have_header <path as in #include>: looks where compilers and distributions put it.
have_header() {
  local folder
  for folder in /usr/include /usr/local/include /usr/include/*-linux-gnu /usr/include/*-linux-gnu/openblas-* \
    /usr/include/openblas /opt/homebrew/include /opt/homebrew/opt/openblas/include; do
    if [[ -e "$folder/$1" ]]; then return 0; fi
  done
  local -a search=()
  IFS=: read -r -a search <<<"${CPATH:-}:${CPLUS_INCLUDE_PATH:-}"
  for folder in ${search[@]+"${search[@]}"}; do
    if [[ -n "$folder" && -e "$folder/$1" ]]; then return 0; fi
  done
  return 1
}

# have <command:NAME | header:PATH>
have() {
  case "$1" in
    command:*) have_command "${1#command:}" ;;
    header:*) have_header "${1#header:}" ;;
    *) die "have: '$1' is neither command:NAME nor header:PATH" ;;
  esac
}

# What the build needs, one line each: how to see that it is there, the Debian and Ubuntu package, what it is for.
# shellcheck disable=SC2034 # for the scripts that source this
plateau_build_needs=(
  "command:g++|g++|the C++ compiler (g++ >= 12 or clang++ >= 14)"
  "command:cmake|cmake|the build system (>= 3.25)"
  "command:ninja|ninja-build|runs the builds"
  "command:pkg-config|pkg-config|finds OpenBLAS"
  "header:openblas_config.h|libopenblas-dev|fast matrix products (the component plateau::blas)"
  "command:mpicxx|libopenmpi-dev|ranks as processes (the component plateau::mpi)"
  "command:mpirun|openmpi-bin|starts programs whose ranks are processes"
  "header:fmt/core.h|libfmt-dev|text output of examples and benchmarks"
  "header:CLI/CLI.hpp|libcli11-dev|command lines of the examples"
  "header:nlohmann/json.hpp|nlohmann-json3-dev|JSON output and safetensors headers of the examples"
  "header:doctest/doctest.h|doctest-dev|the tests"
  "header:benchmark/benchmark.h|libbenchmark-dev|the benchmarks"
)

# apt_install <package ...>: says on failure what it could not do and returns 1.
apt_install() {
  local -a as_root=()
  if [[ "$(id -u)" != 0 ]]; then
    if ! have_command sudo; then
      say "Not root and no sudo here. As root, run: apt-get install $*"
      return 1
    fi
    as_root=(sudo)
    if [[ ! -t 0 ]]; then as_root+=(-n); fi
  fi
  local -a apt=(${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -q)
  local -a command=("${apt[@]}" install -y --no-install-recommends "$@")
  # A fresh machine has no lists yet; old ones may name files that are gone.
  if compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null && "${command[@]}" >&2; then return 0; fi
  say "Refreshing the package lists."
  if "${apt[@]}" update >&2 && "${command[@]}" >&2; then return 0; fi
  say "apt-get could not install: $*"
  return 1
}

# ensure_packages <install: yes or no> <need ...>: installs what is missing and says what and why. Where it cannot,
# it goes on: an optional part is then left out, and the build names a required one.
ensure_packages() {
  local install="$1" need check package why
  shift
  local -a missing=() lines=()
  for need in "$@"; do
    IFS='|' read -r check package why <<<"$need"
    if ! have "$check"; then
      missing+=("$package")
      lines+=("$(printf '  %-20s %s' "$package" "$why")")
    fi
  done
  if [[ ${#missing[@]} == 0 ]]; then return 0; fi
  if [[ "$install" == yes ]] && have_command apt-get; then
    say "Installing with apt-get what is missing:"
    printf '%s\n' "${lines[@]}" >&2
    apt_install "${missing[@]}" || say "Going on with what is here."
  else
    say "Missing (named as Debian and Ubuntu name their packages):"
    printf '%s\n' "${lines[@]}" >&2
    if [[ "$install" == yes ]]; then say "There is no apt-get here: please install them by your system's own means."; fi
    say "Going on with what is here."
  fi
}

# at_least <version> <minimum>
at_least() { [[ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" == "$2" ]]; }

check_tools() {
  have_command cmake || die "cmake (>= 3.25) is needed; Debian and Ubuntu: apt-get install cmake"
  local version
  version="$(cmake --version | sed -n '1s/^cmake version //p')"
  at_least "$version" 3.25 || die "cmake >= 3.25 is needed; $(command -v cmake) is $version"
  check_compiler
}

# check_compiler: the one that CMake will take, $CXX or c++ or whichever is there.
check_compiler() {
  local compiler="${CXX:-}" candidate name=g++ minimum=12
  if [[ -z "$compiler" ]]; then
    for candidate in c++ g++ clang++; do
      if have_command "$candidate"; then
        compiler="$candidate"
        break
      fi
    done
  fi
  have_command "${compiler:-c++}" ||
    die "a C++20 compiler is needed (g++ >= 12 or clang++ >= 14), and ${compiler:-c++} is not here; Debian and Ubuntu: apt-get install g++"
  # Macros, since the text of --version is a matter of the distribution.
  local macros version
  macros="$("$compiler" -dM -E -x c++ /dev/null 2>/dev/null)" || die "$compiler does not compile C++"
  version="$(sed -n 's/^#define __GNUC__ //p' <<<"$macros")"
  if grep -q '^#define __clang__ ' <<<"$macros"; then
    name=clang++
    minimum=14
    version="$(sed -n 's/^#define __clang_major__ //p' <<<"$macros")"
  fi
  at_least "${version:-0}" "$minimum" ||
    die "$name >= $minimum is needed (or the other of g++ >= 12 and clang++ >= 14); $compiler is $name $version: set CXX"
}

# configure <preset> [cmake arguments ...]: quiet unless it fails; prints what is left out.
configure() {
  local preset="$1" folder="$plateau_root/build/$1" log
  shift
  local -a generator=()
  # A build folder keeps the generator that it was made with.
  local made_with=
  if [[ -f "$folder/CMakeCache.txt" ]]; then
    made_with="$(sed -n 's/^CMAKE_GENERATOR:INTERNAL=//p' "$folder/CMakeCache.txt")"
  fi
  if [[ -n "$made_with" ]]; then
    generator=(-G "$made_with")
  elif ! have_command ninja; then
    generator=(-G "Unix Makefiles")
  fi
  mkdir -p "$folder"
  log="$folder/configure.log"
  say "Configuring build/$preset"
  if ! (cd "$plateau_root" && cmake --preset "$preset" ${generator[@]+"${generator[@]}"} "$@") >"$log" 2>&1; then
    cat "$log" >&2
    die "configuring the preset $preset failed; the whole output is in $log"
  fi
  sed -n 's/^-- \(plateau\|moe\): /Left out: /p' "$log" >&2
}

# build <preset> [target ...]: goes on after an error, so that one run shows them all.
build() {
  local preset="$1"
  shift
  local -a targets=() keep_going=(-k)
  if [[ $# -gt 0 ]]; then targets=(--target "$@"); fi
  if grep -q '^CMAKE_GENERATOR:INTERNAL=Ninja' "$plateau_root/build/$preset/CMakeCache.txt"; then keep_going=(-k 0); fi
  say "Building build/$preset${1:+: $*}"
  (cd "$plateau_root" && cmake --build --preset "$preset" -j "$plateau_jobs" ${targets[@]+"${targets[@]}"} \
    -- "${keep_going[@]}") >&2
}

# test_environment: matrix products of one thread each, since tests run side by side. What the user set stays.
test_environment() { export OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}"; }
