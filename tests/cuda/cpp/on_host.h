// CUDA C++ for g++: included before every kernel by the stand-in of NVRTC.
//
// A kernel becomes a function that executes one thread of a block. Threads are fibers (fibers.h) that wait for each other
// in the driver's stand-in (blocks.h). No header of the standard library is included: like NVRTC, names such as uint32_t
// and INFINITY are undefined.
#pragma once

#define ON_HOST 1

#include "thread.h"

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__
#define __constant__ static
// One per host thread, which executes one block at a time. Poisoned before each block (modules.h).
#define __shared__ static thread_local

#define KERNEL(name, threads, Args)                                                                            \
    static void name##_of_thread(const Args& args);                                                            \
    extern "C" __attribute__((visibility("default"))) const on_host::Kernel on_host_kernel_##name = {          \
        [](const void* args) { name##_of_thread(*static_cast<const Args*>(args)); }, sizeof(Args), (threads)}; \
    static void name##_of_thread(const Args& args)

#define SHARED_BYTES(name) unsigned char* const name = on_host::this_thread()->block->shared_bytes

#define threadIdx (on_host::this_thread()->index)
#define blockIdx (on_host::this_thread()->block->index)
#define blockDim (on_host::this_thread()->block->dimensions)
#define gridDim (on_host::this_thread()->block->grid)
#define warpSize 32

typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;

// Ends the launch like `trap` and `assert`.
#define __trap() on_host::fail(715, "__trap()")
#define assert(holds) ((holds) ? (void)0 : on_host::fail(710, "assert(" #holds ")"))

// The first thread-local variable of a module: taking its address instantiates all of them in this host thread.
extern "C" __attribute__((visibility("default"))) void* on_host_shared_memory() {
    static thread_local unsigned char first;
    return &first;
}

namespace on_host {

[[noreturn]] inline void fail(int code, const char* why, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
    this_thread()->block->calls->fail(code, why, {file, line});
    __builtin_unreachable();
}

template <typename To, typename From>
__forceinline__ To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    __builtin_memcpy(&to, &from, sizeof(to));
    return to;
}

}  // namespace on_host

#include "on_host_atomics.h"
#include "on_host_formats.h"
#include "on_host_math.h"
#include "on_host_vectors.h"
#include "on_host_warps.h"
#include "on_host_copies.h"
#include "on_host_tensor.h"
