# Feeds of the Python package in PyTorch on a GPU.
# shellcheck shell=bash disable=SC2154

# Seconds of a check, of which writing its data is the most.
readonly feed_seconds=60

part_feed() {
    local python="${MILLSTREAM_RIVAL_PYTHON:-python3}" what
    if ! "$python" -c "import numpy, pyarrow, sys, torch; sys.exit(not torch.cuda.is_available())" 2>/dev/null; then
        ended "feeds in PyTorch" left_out "$python has no pyarrow, or no PyTorch that sees a GPU"
        return
    fi
    python/link "$work/site" "$programs" || return
    for what in leases copies steps; do
        has_time "feed: $what" "$feed_seconds" || continue
        measure "feed: $what" "$python" bench/gpu_feed.py "$what" --package "$work/site"
    done
}
