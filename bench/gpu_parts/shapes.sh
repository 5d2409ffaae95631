# Sizes: as published for `run`, small for `try`.
# shellcheck shell=bash disable=SC2034,SC2154

for_run() {
    device="cuda"
    step=(--device cuda --cache "$work/kernels")
    shape=(--ids 1000000 --dim 128 --batch 65536 --bottom "512,256" --hidden "1024,1024,512,256")
    # A tenth of the table rows, because tables are read back completely.
    same_shape=(--ids 100000 --dim 128 --batch 65536 --bottom "512,256" --hidden "1024,1024,512,256")
    runs=(--runs 5 --seconds 1 --operations --roof 16)
    mlperf_shape=(--part 8 --dim 128 --bottom "512,256" --hidden "1024,1024,512,256")
    mlperf_batches=(65536 32768 16384)
    agree_shape=(--ids 2000 --dim 16 --batch 1024 --bottom 64 --hidden "256,128,64" --losses 10)
    rival=(--device cuda --runs 5 --seconds 1 --limit "$rival_limit")
    file_rows=8000000 file_epochs=6 file_batch=65536 file_pool=1000000 file_memory="16GiB" file_shards=32
    file_model=(128 "[512, 256]" "[1024, 1024, 512, 256]")
    click_rows=2000000 census=()
    on_device=(--set training.device=cuda)
    faults=(--kills 10 --stops 2 --timeout 10)
}

for_try() {
    device="cpu"
    step=(--device cpu)
    rival=(--device cpu --runs 1 --seconds 0.2 --limit "$rival_limit")
    if [[ -n "${MILLSTREAM_CUDA_LIBRARIES:-}" ]]; then
        device="cuda"
        step=(--device cuda --libraries "$MILLSTREAM_CUDA_LIBRARIES" --cache "$work/kernels")
    fi
    on_device=(--set "training.device=$device")
    faults=(--kills 2 --stops 1 --timeout 5 --epochs 4)
    shape=(--ids 500 --dim 8 --batch 128 --bottom 16 --hidden "32,16" --examples 512)
    same_shape=("${shape[@]}")
    runs=(--runs 2 --seconds 0.1 --operations --roof 1)
    mlperf_shape=(--part 100000 --dim 8 --bottom 16 --hidden "32,16" --examples 256)
    mlperf_batches=(64 32)
    agree_shape=(--ids 500 --dim 8 --batch 128 --bottom 16 --hidden "32,16" --losses 5)
    file_rows=20000 file_epochs=2 file_batch=512 file_pool=5000 file_memory="512MiB" file_shards=2
    file_model=(8 "[16]" "[32, 16]")
    click_rows=20000 census=(--set data.epochs=1)
}
