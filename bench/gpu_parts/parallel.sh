# Steps by several GPUs in PyTorch and in TorchRec, in turns with ours.
# shellcheck shell=bash disable=SC2154

# Seconds of a comparison of losses, and of a measurement, of which PyTorch compiles most.
readonly losses_seconds=45 turns_seconds=90

part_parallel() {
    local python="${MILLSTREAM_RIVAL_PYTHON:-python3}" gpus count model variant variants=()
    can_communicate "PyTorch by several GPUs" || return
    if ! "$python" -c "import numpy, torch" 2>/dev/null; then
        ended "PyTorch by several GPUs" left_out "$python has no PyTorch with numpy"
        return
    fi
    for variant in "${parallel_rivals[@]}"; do
        if [[ "$variant" == torchrec ]] && ! has_torchrec "$python"; then
            ended "TorchRec by several GPUs" left_out "$python has no TorchRec that works"
            continue
        fi
        variants+=("$variant")
    done
    gpus=$(gpu_count)
    for variant in "${variants[@]}"; do
        for model in dlrm wide_deep; do
            losses_of_rival "$model" "$variant" $((gpus > 1 ? 2 : 1))
        done
    done
    for count in "${worker_counts[@]}"; do
        if ((count > gpus)); then
            ended "PyTorch by $count GPUs" left_out "the machine has $gpus GPU(s)"
            continue
        fi
        for variant in "${variants[@]}"; do
            for model in dlrm wide_deep; do
                in_turns "$model" "$variant" "$count"
            done
        done
    done
}

# has_torchrec PYTHON: whether TorchRec and its operations in FBGEMM load. It imports without the latter.
has_torchrec() {
    "$1" -c "import torch, torchrec; torch.ops.fbgemm.permute_2D_sparse_data" 2>/dev/null
}

# losses_of_rival MODEL VARIANT COUNT: in fp32, the rival's ranks have the losses of one worker of ours.
losses_of_rival() {
    local name="$1: losses of $3 ranks of PyTorch are those of one worker, $2" began=$SECONDS
    has_time "$name" "$losses_seconds" || return
    echo "== $name"
    within "$programs/step_speed" "${step[@]}" --model "$1" "${agree_shape[@]}" --precision fp32 >"$work/ours" &&
        SAME=1 within bench/gpu_parts/each_rank.sh "$3" "${rival[1]}" "$python" bench/gpu_ranks.py "$2" --model "$1" \
            "${agree_shape[@]}" --precision fp32 >"$work/theirs" &&
        within "$python" bench/gpu_agree.py "$work/ours" "$work/theirs"
    judge "$name" $? $((SECONDS - began))
}

# in_turns MODEL VARIANT COUNT
in_turns() {
    local name="parallel: $1 by $3 workers, $2"
    has_time "$name" "$turns_seconds" || return
    measure "$name" "$python" bench/gpu_turns.py "$2" --workers "$3" --device "$device" --rival-device "${rival[1]}" \
        --limit "$rival_limit" --rounds "${runs[1]}" -- "$programs/step_speed" "${step[@]:2}" -- \
        --model "$1" --precision bf16 "${shape[@]}" "${runs[@]:2:2}"
}
