# Steps from memory: ours, PyTorch's, and MLPerf's model.
# shellcheck shell=bash disable=SC2154

part_speed() {
    steps_in bf16
}

part_precisions() {
    steps_in bf16 bf16
    steps_in fp16
    steps_in fp32
    steps_in tf32
}

# steps_in PRECISION [PRECISION of tables]
steps_in() {
    local model tables="${2:-fp32}" of_tables="${2:+, tables in $2}"
    for model in dlrm wide_deep; do
        measure "$model in $1$of_tables" "$programs/step_speed" "${step[@]}" --model "$model" --precision "$1" \
            --tables "$tables" "${shape[@]}" "${runs[@]}" --json
    done
}

part_rival() {
    local python="${MILLSTREAM_RIVAL_PYTHON:-python3}" model
    if ! "$python" -c "import numpy, torch" 2>/dev/null; then
        ended "PyTorch" left_out "$python has no PyTorch with numpy"
        return
    fi
    for model in dlrm wide_deep; do
        agree "$model" "$python"
        measure "PyTorch: $model in bf16" "$python" bench/gpu_rival.py all --model "$model" \
            "${shape[@]}" "${rival[@]}"
    done
}

# Losses agree step by step in fp32.
agree() {
    local model="$1" python="$2" variant
    for variant in sorted scratch; do
        local name="$model: losses are those of PyTorch, $variant" began=$SECONDS
        echo "== $name"
        within "$programs/step_speed" "${step[@]}" --model "$model" "${agree_shape[@]}" >"$work/ours" &&
            within "$python" bench/gpu_rival.py "$variant" --model "$model" "${agree_shape[@]}" --precision fp32 \
                "${rival[@]:0:2}" >"$work/theirs" &&
            within "$python" bench/gpu_agree.py "$work/ours" "$work/theirs"
        judge "$name" $? $((SECONDS - began))
    done
}

part_mlperf() {
    local batch name
    for batch in "${mlperf_batches[@]}"; do
        name="DLRM-DCNv2 in bf16, batches of $batch"
        measure "$name" "$programs/step_speed" "${step[@]}" --model mlperf --precision bf16 --batch "$batch" \
            "${mlperf_shape[@]}" "${runs[@]}" --json
        # Smaller tables, for a GPU with too little memory for these.
        grep -q '"rate"' "$work/output" && return
    done
}
