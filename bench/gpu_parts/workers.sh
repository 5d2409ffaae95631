# Several workers that train one model together: the same results, and rates by the number of GPUs.
# shellcheck shell=bash disable=SC2154

part_workers() {
    can_communicate "several workers" || return
    local gpus model count
    gpus=$(gpu_count)
    for model in dlrm wide_deep; do
        local on=shared
        ((gpus > 1)) && on="$device"
        losses_of_workers "$model" 2 "$on" fp32 5e-5
        # Ten times what was seen on an H200.
        losses_of_workers "$model" 2 "$on" bf16 1e-4
    done
    for model in dlrm wide_deep; do
        for count in "${worker_counts[@]}"; do
            if ((count > gpus)); then
                ended "$model by $count workers" left_out "the machine has $gpus GPU(s)"
                continue
            fi
            steps_by "$model by $count workers" "$count" fp32
            if ((count > 1)); then
                steps_by "$model by $count workers, gradients in 16 bits" "$count" bf16
            fi
        done
    done
}

# steps_by NAME COUNT GRADIENTS: the rates of COUNT workers, which exchange gradients in this precision.
steps_by() {
    measure "$1" bench/gpu_parts/each_rank.sh "$2" "$device" "$programs/step_speed" "${step[@]}" \
        --model "${1%% *}" --precision bf16 --gradients "$3" "${shape[@]}" "${runs[@]:0:4}" --json
}

# can_communicate NAME: whether the libraries between workers are installed; otherwise records that the check is left out.
can_communicate() {
    if ! has_library libucp.so.0; then
        ended "$1" left_out "UCX (package libucx0) is not installed"
        return 1
    fi
    if [[ "$command" == run ]] && ! has_library libnccl.so.2; then
        ended "$1" left_out "NCCL (package libnccl2) is not installed"
        return 1
    fi
}

# has_library FILE: whether the loader finds it.
has_library() {
    local place places
    ldconfig -p | grep -qF "$1 " && return
    IFS=: read -ra places <<<"${LD_LIBRARY_PATH:-}"
    for place in "${places[@]}"; do
        [[ -e "$place/$1" ]] && return
    done
    return 1
}

# The GPUs of this machine; without any, as many as the CPU or the emulated libraries stand for.
gpu_count() {
    if [[ "$command" == try ]]; then
        echo "${MILLSTREAM_STAND_IN_DEVICES:-2}"
    else
        nvidia-smi -L | wc -l
    fi
}

# losses_of_workers MODEL COUNT DEVICE GRADIENTS TOLERANCE: in fp32, with gradients exchanged in this precision, all workers have
# the same weights, and the losses are those of one worker.
losses_of_workers() {
    local name="$1: losses of $2 workers are those of one ($3, gradients in $4)" began=$SECONDS
    local program=("$programs/step_speed" "${step[@]}" --model "$1" "${agree_shape[@]}" --precision fp32)
    echo "== $name"
    within "${program[@]}" >"$work/ours" &&
        SAME=1 within bench/gpu_parts/each_rank.sh "$2" "$3" "${program[@]}" --gradients "$4" >"$work/theirs" &&
        within python3 bench/gpu_agree.py "$work/ours" "$work/theirs" "$5"
    judge "$name" $? $((SECONDS - began))
}
