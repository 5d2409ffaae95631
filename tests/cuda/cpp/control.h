// Control functions for tests and for the stand-ins of cuBLASLt and NCCL, which do not exist in CUDA. The stand-ins of NVRTC,
// cuBLASLt and NCCL also export stand_in_fail and stand_in_calls, for their own functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "api.h"

extern "C" {

// Sets the seed of all random choices from now on. Initially: MILLSTREAM_STAND_IN_SEED, else 0.
void stand_in_seed(std::uint64_t seed);

// Sets the memory of a device in bytes. Initially: MILLSTREAM_STAND_IN_MEMORY_BYTES, else 8 GiB.
void stand_in_memory(std::uint64_t bytes);

// Sets the number of devices, at most 16; must precede cuInit. Initially: MILLSTREAM_STAND_IN_DEVICES, else 1.
void stand_in_devices(int count);

// Sets the value that devices report for an attribute (CU_DEVICE_ATTRIBUTE_...).
void stand_in_attribute(int attribute, int value);

// Makes the `nth` call of a function from now on (1: the next) fail with this code. The function "work" stands for work
// items as they run (kernels, copies, fills and products): like a failed launch, their failure is the context's.
// "work@1" stands for those of device 1 alone.
// Initially, for all of these libraries: MILLSTREAM_STAND_IN_FAIL, a list like `cuMemAlloc_v2:3:2,work:10:719`.
void stand_in_fail(const char* function, std::uint64_t nth, int code);

// The number of calls of a function, or of "work" items run, so far.
std::uint64_t stand_in_calls(const char* function);

// A count over all devices: "bytes" of allocated memory, "most bytes" (the peak), "page-locked bytes", "allocations",
// "streams", "events", "modules", "functions", "graphs", "executable graphs", pending "work". All ones for anything else.
std::uint64_t stand_in_count(const char* what);

// Why the last call or launch failed, NUL-terminated and truncated to `room`. Returns its length.
std::size_t stand_in_message(char* message, std::size_t room);

// Enqueues work in a stream, or in the graph that it captures. `run` is called each time the work runs and returns a
// CUresult; `free` is called when it will not run again, including when this function fails. If `run` returns
// CUDA_ERROR_NOT_READY, the work waits for something outside of the driver, and is called again: not in a graph.
CUresult stand_in_enqueue(CUstream stream, const char* name, CUresult (*run)(void* data), void (*free)(void* data),
                          void* data);

// Whether a range lies within one allocation of device memory.
int stand_in_reaches(std::uintptr_t address, std::size_t bytes);

// The device of the calling thread's context, or -1.
int stand_in_current_device();

// Whether a stream is captured.
int stand_in_is_captured(CUstream stream);

// Runs the work of a stream and what it depends on, as far as it need not wait for anything outside of the driver. By this,
// work that other processes wait for gets done while no thread of this one waits for it, as on a device.
void stand_in_advance(CUstream stream);
}
