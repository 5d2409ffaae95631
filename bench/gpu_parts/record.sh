# Reports each check and measurement on the terminal and as a line of JSON.
# shellcheck shell=bash disable=SC2154

passed=0
failed=0
left=0
# Background processes, ended at exit.
processes=()

end_processes() {
    local process
    for process in "${processes[@]}"; do
        kill "$process" 2>/dev/null && wait "$process" 2>/dev/null
    done
    processes=()
}

# note MEMBERS: records a figure of the current part, as members of a JSON object.
note() {
    printf '{"part":"%s",%s}\n' "$part" "$1" >>"$figures"
}

# Encodes a text as JSON.
text() {
    local text="${1//\\/\\\\}"
    text="${text//\"/\\\"}"
    printf '"%s"' "${text//[$'\n\t\r']/ }"
}

# ended NAME passed|failed|left_out [SECONDS|WHY]
ended() {
    case "$2" in
        passed) passed=$((passed + 1)) && note "\"check\":$(text "$1"),\"ended\":\"passed\",\"seconds\":$3" ;;
        failed) failed=$((failed + 1)) && note "\"check\":$(text "$1"),\"ended\":\"failed\",\"seconds\":$3" ;;
        left_out)
            left=$((left + 1))
            echo "== $1: left out, $3"
            note "\"check\":$(text "$1"),\"ended\":\"left out\",\"why\":$(text "$3")"
            ;;
    esac
}

# Runs a command within the remaining time of the run, and within MOST seconds if set. Status 124: timed out.
within() {
    local most=$((limit - SECONDS))
    if [[ -n "${MOST:-}" ]] && ((MOST < most)); then
        most=$MOST
    fi
    if ((most < 5)); then
        return 124
    fi
    timeout --kill-after=5 "$most" "$@"
}

# has_time NAME SECONDS: whether the run has so much time left; otherwise records that the check is left out.
has_time() {
    local rest=$((limit - SECONDS))
    if ((rest < $2)); then
        ended "$1" left_out "it takes about $2 s, and $rest s are left"
        return 1
    fi
}

# check NAME COMMAND...: passes if the command succeeds.
check() {
    local name="$1" began=$SECONDS status
    echo "== $name"
    within "${@:2}"
    status=$?
    judge "$name" $status $((SECONDS - began))
}

# judge NAME STATUS SECONDS
judge() {
    if (($2 == 0)); then
        ended "$1" passed "$3"
    elif (($2 == 124 || $2 == 137)); then
        ended "$1" left_out "its time was over after $3 s"
    else
        echo "== $1: failed with status $2"
        ended "$1" failed "$3"
    fi
}

# measure NAME COMMAND...: like check, for a command that prints figures as lines of JSON.
measure() {
    local name="$1" began=$SECONDS status line
    echo "== $name"
    within "${@:2}" >"$work/output"
    status=$?
    while IFS= read -r line; do
        [[ "$line" == "{"* ]] && note "\"name\":$(text "$name"),\"result\":$line"
    done <"$work/output"
    cut -c1-240 "$work/output" | head -4
    judge "$name" $status $((SECONDS - began))
}

# Prints a command's JSON document on one line.
document() {
    tr -d '\n' <"$1"
}

unpack() {
    if [[ -f "$folder/programs.tar.gz" ]]; then
        programs="$work/programs"
        mkdir -p "$programs" && tar -xzf "$folder/programs.tar.gz" -C "$programs" || exit 1
    else
        programs="$folder"
    fi
    export CACHE_DIRECTORY="$work/cache" MILLSTREAM_SOCKET="$work/none.sock" RUST_BACKTRACE=0
}

record_host() {
    local gpu="none" cpu commit
    if command -v nvidia-smi >/dev/null; then
        gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader)
    fi
    echo "$gpu"
    cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)
    commit=$(cat "$programs/commit" 2>/dev/null)
    part=host note "\"date\":\"$(date -u +%F)\",\"command\":$(text "bench/gpu $command $folder $*"),\"gpu\":$(text "$gpu"),\
\"cpu\":$(text "$(nproc) cores of $cpu"),\"kernel\":$(text "$(uname -sr)"),\"commit\":$(text "$commit"),\"device\":\"$device\""
}
