# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# expect_refusal.sh <status> <pattern> <command ...>: passes if the command ends with this status and says one line,
# which has the pattern.
expected="$1"
pattern="$2"
shift 2
said="$("$@" 2>&1)"
status=$?
printf '%s\n(status %s)\n' "$said" "$status"
test "$status" = "$expected" || exit 1
test "$(printf '%s\n' "$said" | wc -l)" -eq 1 || exit 1
printf '%s\n' "$said" | grep -q "$pattern"
