# Training from files with the shipped programs.
# shellcheck shell=bash disable=SC2154

part_files() {
    local format
    for format in tfrecord parquet; do
        local data="$work/$format"
        mkdir -p "$data"
        check "generate $format" "$programs/millstream" generate --rows "$file_rows" --shards "$file_shards" --ids integer \
            "$data/clicks.$format"
        clicks_job "$format" >"$data/job.toml"
        from_files "DLRM from $format" "$data"
        rm -rf "$data"
    done
}

# DLRM on generated clicks.
clicks_job() {
    local name
    cat <<TOML
name = "clicks"
[data]
train = ["*.$1"]
eval = []
batch_size = $file_batch
epochs = $file_epochs
shuffle_rows = $file_pool
memory_budget = "$file_memory"
[label]
column = "clicked"
[features]
TOML
    for name in i{1..13}; do
        echo "$name = { kind = \"numeric\", normalize = \"log1p\", missing = 0 }"
    done
    for name in c{1..26}; do
        echo "$name = { kind = \"hashed\", buckets = 100000 }"
    done
    cat <<TOML
[model]
kind = "dlrm"
features = [$(printf '"%s", ' i{1..13} c{1..26})]
embedding_dim = ${file_model[0]}
bottom = ${file_model[1]}
top = ${file_model[2]}
optimizer = { kind = "adagrad", learning_rate = 0.01 }
[training]
precision = "bf16"
[checkpoint]
directory = "checkpoints"
every_steps = 1000000
keep = 1
TOML
}

# from_files NAME FOLDER: trains in a daemon and asks it for the bottleneck meanwhile.
from_files() {
    local name="$1" data="$2" began=$SECONDS status job
    echo "== $name"
    export MILLSTREAM_SOCKET="$work/millstreamd.sock"
    "$programs/millstreamd" --socket "$MILLSTREAM_SOCKET" --state "$data/state" 2>"$data/daemon.log" &
    processes+=($!)
    wait_for_daemon || cat "$data/daemon.log"
    within "$programs/millstream" train "$data/job.toml" "${on_device[@]}" --json >"$data/outcome" &
    local training=$!
    while kill -0 "$training" 2>/dev/null; do
        job=$("$programs/millstream" list --json 2>/dev/null | tr -d ' \n' | sed -n 's/^.*"id":"\([^"]*\)".*$/\1/p')
        if "$programs/millstream" explain "$job" --json >"$data/explained" 2>/dev/null; then
            mv "$data/explained" "$data/explanation"
        fi
        sleep 0.5
    done
    wait "$training"
    status=$?
    [[ -s "$data/outcome" ]] && note "\"name\":$(text "$name"),\"result\":$(document "$data/outcome")" && cat "$data/outcome"
    [[ -s "$data/explanation" ]] && note "\"name\":$(text "$name"),\"explained\":$(document "$data/explanation")"
    "$programs/millstream" show "$job"
    end_processes
    export MILLSTREAM_SOCKET="$work/none.sock"
    judge "$name" $status $((SECONDS - began))
}

wait_for_daemon() {
    local number
    for number in {1..100}; do
        "$programs/millstream" list >/dev/null 2>&1 && return
        sleep 0.1
    done
    echo "the daemon does not answer after $number looks"
    return 1
}
