#!/usr/bin/env bash
# Runs each test of a test program whose name matches a pattern in a process of its own, several at a time: a fault of the
# GPU fails all later work of its process. Prints the output of tests that fail; exits with a status if any does.
#
#   bench/gpu_parts/each.sh PROGRAM PATTERN

set -uo pipefail
readonly program="$1" pattern="$2" at_once=8

run_one() {
    local output
    output=$("$program" --exact "$1" 2>&1) || { printf '%s\n' "$output" | grep -v '^$' && return 1; }
}

tests=$("$program" --list | sed -n 's/: test$//p' | grep -E "$pattern") || { echo "$program has no tests of $pattern" && exit 1; }
export -f run_one
export program
xargs -P "$at_once" -I{} bash -c 'run_one {}' <<<"$tests" || exit 1
echo "$(wc -l <<<"$tests") tests passed"
