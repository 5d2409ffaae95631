# Metrics of jobs on the GPU and on the CPU.
# shellcheck shell=bash disable=SC2154

part_auc() {
    train_everywhere "Census" examples/census/job.toml "${census[@]}"
    local data="$work/clicks"
    mkdir -p "$data"
    check "generate clicks" "$programs/millstream" generate --rows "$click_rows" --shards 16 "$data/train.tfrecord"
    check "generate held-out clicks" "$programs/millstream" generate --rows $((click_rows / 10)) --first-row "$click_rows" \
        --shards 4 "$data/eval.tfrecord"
    train_everywhere "clicks" examples/clicks/job.toml --set "data.train=[\"$data/train-*.tfrecord\"]" \
        --set "data.eval=[\"$data/eval-*.tfrecord\"]"
}

# train_everywhere NAME JOB SET...
train_everywhere() {
    local precision on
    for precision in fp32 bf16 fp16; do
        for on in cpu "$device"; do
            train_once "$1 in $precision on $on" "$2" "${@:3}" --set "training.precision=$precision" --set "training.device=$on"
            # `try` without a GPU uses the same device twice.
            [[ "$device" == cpu ]] && break
        done
    done
}

train_once() {
    local name="$1" began=$SECONDS status
    echo "== $name"
    within "$programs/millstream" train "$2" "${@:3}" --set "checkpoint.directory=$work/checkpoints" --json >"$work/outcome" \
        2>"$work/said"
    status=$?
    ((status == 0)) || cat "$work/said"
    [[ -s "$work/outcome" ]] && note "\"name\":$(text "$name"),\"result\":$(document "$work/outcome")"
    grep -o '"auc": *[0-9.]*' "$work/outcome"
    rm -rf "$work/checkpoints"
    judge "$name" $status $((SECONDS - began))
}
