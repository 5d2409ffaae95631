// Copies from global to shared memory that go on while their thread does something else (PTX ISA, "Data Movement and
// Conversion Instructions: Asynchronous copy", `cp.async`). Only the thread that began a copy may read its destination
// without a barrier.
#pragma once

#include "device.cuh"

// Begins to copy 8 or 16 bytes; both places are aligned to as many.
template <u32 BYTES>
__device__ __forceinline__ void begin_copy(void* to, const void* from) {
#ifdef ON_HOST
    on_host::begin_copy(to, from, BYTES);
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" : : "r"(u32(__cvta_generic_to_shared(to))), "l"(from), "n"(BYTES)
                 : "memory");
#endif
}

// Ends a group: the copies that this thread has begun since the last one, which may be none.
__device__ __forceinline__ void end_group() {
#ifdef ON_HOST
    on_host::end_group();
#else
    asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}

// Waits for all groups of this thread but the last `LATEST`.
template <u32 LATEST>
__device__ __forceinline__ void wait_for_groups() {
#ifdef ON_HOST
    on_host::wait_for_groups(LATEST);
#else
    asm volatile("cp.async.wait_group %0;" : : "n"(LATEST) : "memory");
#endif
}
