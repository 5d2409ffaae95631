// Streams and events: the order of execution.
#include "check.h"

namespace {

struct Fill {
    CUdeviceptr to;
    unsigned long long count;
    unsigned value;
};

// A kernel that sets 1000 numbers to `value`, `value` + 1 and so on.
void fill(CUdeviceptr to, unsigned value, CUstream by) {
    OK(launch(kernel("fill"), 4, 256, by, Fill{to, 1000, value}));
}

void seed(std::uint64_t seed) { call<void>(cuda, "stand_in_seed", seed); }

}  // namespace

CASE(streams_run_when_awaited) {
    begin();
    CUdeviceptr memory = upload(std::vector<unsigned>(1000, 5));
    CUstream by = stream();
    unsigned* to = locked<unsigned>(1000);
    to[3] = 77;
    fill(memory, 7, by);
    OK(cu("cuMemcpyDtoHAsync_v2", static_cast<void*>(to), memory, size_t(4000), by));
    EQUAL(to[3], 77u);
    EQUAL(count("work"), 2u);
    synchronize(by);
    EQUAL(to[3], 10u);
    EQUAL(count("work"), 0u);
}

CASE(streams_page_locked_source_is_read_late) {
    begin();
    CUdeviceptr memory = allocate(4);
    CUstream by = stream();
    unsigned* locked_value = locked<unsigned>(1);
    *locked_value = 1;
    OK(cu("cuMemcpyHtoDAsync_v2", memory, static_cast<const void*>(locked_value), size_t(4), by));
    *locked_value = 2;
    synchronize(by);
    EQUAL(download<unsigned>(memory, 1)[0], 2u);
    // The same for registered memory, and the opposite for unregistered memory.
    std::vector<unsigned> value(1024, 3);
    OK(cu("cuMemHostRegister_v2", static_cast<void*>(value.data()), size_t(4096), 0u));
    OK(cu("cuMemcpyHtoDAsync_v2", memory, static_cast<const void*>(&value[500]), size_t(4), by));
    value[500] = 4;
    synchronize(by);
    EQUAL(download<unsigned>(memory, 1)[0], 4u);
    OK(cu("cuMemHostUnregister", static_cast<void*>(value.data())));
    OK(cu("cuMemcpyHtoDAsync_v2", memory, static_cast<const void*>(&value[500]), size_t(4), by));
    value[500] = 5;
    synchronize(by);
    EQUAL(download<unsigned>(memory, 1)[0], 4u);
}

CASE(streams_need_events_between_them) {
    begin();
    CUdeviceptr memory = allocate(4000);
    CUstream first = stream(), second = stream();
    unsigned* to = locked<unsigned>(1000);
    unsigned early = 0;
    for (std::uint64_t i = 0; i < 64; ++i) {
        seed(i);
        OK(cu("cuMemsetD32Async", memory, 0u, size_t(1000), first));
        synchronize(first);
        bool waits = i % 2 == 0;
        fill(memory, 1, first);
        CUevent filled = event();
        OK(cu("cuEventRecord", filled, first));
        if (waits) OK(cu("cuStreamWaitEvent", second, filled, 0u));
        OK(cu("cuMemcpyDtoHAsync_v2", static_cast<void*>(to), memory, size_t(4000), second));
        synchronize(second);
        if (waits) EQUAL(to[0], 1u);
        else early += to[0] == 0;
        OK(cu("cuEventDestroy_v2", filled));
        synchronize(first);
    }
    CHECK(early > 8 && early < 32);
}

CASE(streams_event_captures_what_was_there) {
    begin();
    CUstream by = stream(), other = stream();
    CUdeviceptr memory = allocate(4000);
    CUevent done = event();
    OK(cu("cuEventQuery", done));
    OK(cu("cuStreamWaitEvent", by, done, 0u));
    fill(memory, 1, by);
    OK(cu("cuEventRecord", done, by));
    fill(memory, 2, by);
    OK(cu("cuEventSynchronize", done));
    unsigned value = download<unsigned>(memory, 1)[0];
    CHECK(value == 1 || value == 2);
    // A wait refers to the last record before it, regardless of later ones.
    OK(cu("cuEventRecord", done, by));
    OK(cu("cuStreamWaitEvent", other, done, 0u));
    OK(cu("cuEventRecord", done, other));
    synchronize(other);
    EQUAL(download<unsigned>(memory, 1)[0], 2u);
}

CASE(streams_queries_end) {
    begin();
    CUstream by = stream();
    CUevent done = event();
    CUdeviceptr memory = allocate(4000);
    for (unsigned i = 0; i < 5; ++i) fill(memory, i, by);
    OK(cu("cuEventRecord", done, by));
    EQUAL(cu("cuEventQuery", done), CUDA_ERROR_NOT_READY);
    EQUAL(count("work"), 6u);
    unsigned asked = 1;
    for (; cu("cuEventQuery", done) == CUDA_ERROR_NOT_READY; ++asked) CHECK(asked < 20);
    CHECK(asked >= 5);
    fill(memory, 9, by);
    EQUAL(cu("cuStreamQuery", by), CUDA_ERROR_NOT_READY);
    OK(cu("cuStreamQuery", by));
    EQUAL(download<unsigned>(memory, 1)[0], 9u);
}

CASE(streams_times_of_events) {
    begin();
    CUstream by = stream();
    CUevent start = nullptr, end = nullptr;
    OK(cu("cuEventCreate", &start, 0u));
    OK(cu("cuEventCreate", &end, 0u));
    OK(cu("cuEventRecord", start, by));
    fill(allocate(4000), 1, by);
    OK(cu("cuEventRecord", end, by));
    float milliseconds = -1;
    EQUAL(cu("cuEventElapsedTime", &milliseconds, start, end), CUDA_ERROR_NOT_READY);
    synchronize(by);
    OK(cu("cuEventElapsedTime", &milliseconds, start, end));
    CHECK(milliseconds > 0 && milliseconds < 1000);
    EQUAL(cu("cuEventElapsedTime", &milliseconds, event(), end), CUDA_ERROR_INVALID_HANDLE);
}

CASE(streams_destroyed_ones_finish) {
    begin();
    CUstream by = stream(), other = stream();
    CUdeviceptr memory = upload(std::vector<unsigned>(1000, 0));
    CUevent done = event();
    fill(memory, 3, by);
    OK(cu("cuEventRecord", done, by));
    OK(cu("cuStreamDestroy_v2", by));
    EQUAL(cu("cuStreamSynchronize", by), CUDA_ERROR_INVALID_HANDLE);
    OK(cu("cuStreamWaitEvent", other, done, 0u));
    OK(cu("cuEventDestroy_v2", done));
    EQUAL(cu("cuEventQuery", done), CUDA_ERROR_INVALID_HANDLE);
    synchronize(other);
    EQUAL(download<unsigned>(memory, 1)[0], 3u);
}

CASE(streams_parameters_are_copied_at_launch) {
    begin();
    CUstream by = stream();
    Fill args{allocate(4000), 1000, 1};
    void* parameters[] = {&args};
    OK(cu("cuLaunchKernel", kernel("fill"), 4u, 1u, 1u, 256u, 1u, 1u, 0u, by, static_cast<void**>(parameters),
          static_cast<void**>(nullptr)));
    args.value = 2;
    synchronize(by);
    EQUAL(download<unsigned>(args.to, 1)[0], 1u);
}
