# Builds the archive for `bench/gpu run`.
# shellcheck shell=bash disable=SC2154

build() {
    local target="${CARGO_TARGET_DIR:-target}/release" made
    made=$(mktemp -d) || exit 1
    cargo build --release --locked --workspace --bins || exit 1
    cargo build --release --locked -p millstream-trainer --examples || exit 1
    cargo build --release --locked -p millstream-python || exit 1
    local program
    for program in millstream millstreamd examples/step_speed; do
        strip -o "$made/${program##*/}" "$target/$program" || exit 1
    done
    strip -o "$made/libmillstream_native.so" "$target/libmillstream_native.so" || exit 1
    test_program millstream-backend conformance
    test_program millstream-trainer models
    git rev-parse HEAD >"$made/commit"
    mkdir -p "$folder"
    tar -czf "$folder/programs.tar.gz" -C "$made" . || exit 1
    rm -r "$made"
    ls -l "$folder/programs.tar.gz"
}

# Test programs have a hash in their names; the archive names them by subject.
test_program() {
    local path
    path=$(cargo test --release --locked -p "$1" --test "$2" --no-run --message-format json |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1)
    strip -o "$made/$2" "${path:?no program of $2}" || exit 1
}
