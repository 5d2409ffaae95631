# Workers killed and stopped in the middle of training, in a daemon.
# shellcheck shell=bash disable=SC2154

readonly killed_seconds=180

part_killed() {
    local gpus count name
    can_communicate "killed workers" || return
    if ! command -v python3 >/dev/null; then
        ended "killed workers" left_out "Python is not installed"
        return
    fi
    gpus=$(gpu_count)
    if ((gpus < 2)); then
        ended "killed workers" left_out "the machine has $gpus GPU(s)"
        return
    fi
    for count in "${worker_counts[@]}"; do
        ((count > 1 && count <= gpus)) || continue
        name="killed: $count workers"
        has_time "$name" "$killed_seconds" || continue
        measure "$name" python3 bench/worker_faults.py --programs "$programs" --device "$device" --workers "$count" \
            "${faults[@]}" --json
    done
}
