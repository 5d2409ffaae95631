#!/usr/bin/env bash
# Runs a program as several workers that train together, and prints what the first one prints.
#
#   each_rank.sh COUNT DEVICE PROGRAM [ARGUMENT...]
#
# DEVICE is `cpu`, `cuda` (a GPU for each) or `shared` (all on one GPU, which NCCL allows since 2.30). With SAME set, all
# must print the same.

set -uo pipefail

readonly count="$1" device="$2"
shift 2

device_of() {
    case "$device" in
        cuda) echo "cuda:$1" ;;
        shared) echo "cuda:0" ;;
        *) echo "$device" ;;
    esac
}

meet=$(mktemp -d "${TMPDIR:-/tmp}/millstream-ranks.XXXXXX") || exit 1
# shellcheck disable=SC2046
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$meet"' EXIT
# As the daemon sets them for its workers.
export NCCL_NVLS_ENABLE=0 NCCL_SOCKET_IFNAME="=lo"
[[ "$device" == shared ]] && export NCCL_MULTI_RANK_GPU_ENABLE=1
mkdir "$meet/addresses" || exit 1

for ((rank = 0; rank < count; rank++)); do
    "$@" --device "$(device_of "$rank")" --workers "$count" --rank "$rank" --meet "$meet/addresses" >"$meet/output-$rank" &
done
status=0
for ((rank = 0; rank < count; rank++)); do
    # The first failure ends all: the others would wait for that worker.
    wait -n || {
        status=$?
        break
    }
done
cat "$meet/output-0"
if [[ -n "${SAME:-}" ]] && ((status == 0)); then
    for ((rank = 1; rank < count; rank++)); do
        cmp "$meet/output-0" "$meet/output-$rank" >&2 || status=1
    done
fi
exit "$status"
