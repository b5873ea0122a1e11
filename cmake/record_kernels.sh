#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# record_kernels.sh <nvcc> <arguments ...>: runs nvcc, and puts what `-Xptxas -v` says of each kernel into
# <object>.ptxas instead of on the screen, where warnings would drown in it.
set -u
object=
previous=
for argument in "$@"; do
  if [ "$previous" = -o ]; then object="$argument"; fi
  previous="$argument"
done
if [ -z "$object" ]; then exec "$@"; fi
"$@" >"$object.ptxas.all" 2>&1
result=$?
# The third line of an entry begins with spaces, not with ptxas.
pattern='^ptxas info|^ +[0-9]+ bytes stack frame'
grep -E "$pattern" "$object.ptxas.all" >"$object.ptxas"
grep -Ev "$pattern" "$object.ptxas.all" >&2
rm -f "$object.ptxas.all"
exit "$result"
