#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# kernel_resources.sh <file that lists objects> <table>: reads what record_kernels.sh left beside the objects,
# writes and prints a line for each kernel and architecture, and fails where a kernel of ours spills registers to
# memory: it would be slow without any other sign. CUB's own kernels are listed and not judged.
set -eu
objects="$1"
table="$2"
demangle="cat"
if command -v c++filt >/dev/null 2>&1; then demangle="c++filt -p"; fi

while read -r object; do
  case "$object" in
    *.cu.o)
      if [ ! -e "$object.ptxas" ]; then
        echo "$object.ptxas is missing: build plateau_cuda_tests first" >&2
        exit 1
      fi
      cat "$object.ptxas"
      ;;
  esac
done <"$objects" | awk '
  /Compiling entry function/ { split($0, part, "\047"); name = part[2]; arch = part[4]; stores = 0; loads = 0; next }
  # Of the kernel itself or of a function that it calls.
  /bytes spill stores/ {
    for (i = 2; i <= NF; i++) {
      if ($i == "spill" && $(i + 1) ~ /^stores/) stores += $(i - 2)
      if ($i == "spill" && $(i + 1) ~ /^loads/) loads += $(i - 2)
    }
  }
  /Used [0-9]+ registers/ {
    shared = 0; stack = 0
    for (i = 2; i <= NF; i++) {
      if ($i == "Used") registers = $(i + 1)
      if ($i == "cumulative") stack = $(i - 2)
      if ($i ~ /^smem/) shared = $(i - 2)
    }
    row[count++] = sprintf("%9d %7d %7d %7d %7d  %-6s %s", registers, stores, loads, shared, stack, arch, name)
  }
  END { for (i = 0; i < count; i++) print row[i] }' | sort -u | $demangle |
  sed -e 's/ void / /' -e 's/plateau::v0:://g' | sort -k7 >"$table.rows"

{
  echo "registers  spill    spill  shared   stack  arch   kernel"
  echo "          stores    loads   bytes   bytes"
  cat "$table.rows"
} >"$table"
rm -f "$table.rows"
cat "$table"
awk 'NR > 2 && $7 !~ /^cub::/ { kernels++; if ($2 + $3 > 0) spills++ }
  END {
    printf "%d kernels, %d of them spill registers\n", kernels, spills
    exit kernels == 0 || spills > 0
  }' "$table"
