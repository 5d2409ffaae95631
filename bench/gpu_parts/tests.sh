# The test suites, the sanitizer and the comparison of two runs.
# shellcheck shell=bash disable=SC2154

part_tests() {
    if [[ "$device" == cpu || -n "${MILLSTREAM_CUDA_LIBRARIES:-}" ]]; then
        ended "suites" left_out "they find their own stand-ins: cargo test"
        return
    fi
    export MILLSTREAM_GPU="$work/kernels"
    check "operations" bench/gpu_parts/each.sh "$programs/conformance" "cuda|on_each"
    check "models" bench/gpu_parts/each.sh "$programs/models" cuda
    check "loss scale" bench/gpu_parts/each.sh "$programs/models" loss_scale
    unset MILLSTREAM_GPU
}

part_sanitizer() {
    if ! command -v compute-sanitizer >/dev/null; then
        ended "compute-sanitizer" left_out "it is not installed"
        return
    fi
    local tool
    export MILLSTREAM_GPU="$work/kernels"
    for tool in memcheck racecheck initcheck; do
        MOST=170 check "$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$programs/conformance" on_cuda --test-threads 1
    done
    unset MILLSTREAM_GPU
}

part_same() {
    local model precision
    for model in wide_deep dlrm; do
        for precision in fp32 bf16 fp16; do
            twice "same bits: $model in $precision" "$programs/step_speed" "${step[@]}" --model "$model" \
                --precision "$precision" "${same_shape[@]}" --losses 5
        done
    done
}

# twice NAME COMMAND...: passes if two runs print the same non-empty output.
twice() {
    local name="$1" began=$SECONDS status=0 number
    echo "== $name"
    for number in 1 2; do
        within "${@:2}" >"$work/output-$number" || status=$?
    done
    if ((status == 0)); then
        grep -q '"digest"' "$work/output-1" && cmp "$work/output-1" "$work/output-2" || status=1
        note "\"name\":$(text "$name"),\"result\":$(document "$work/output-1")"
        cut -c1-240 "$work/output-1"
    fi
    judge "$name" $status $((SECONDS - began))
}
