// What tests, and the stand-in of cuBLASLt, ask of the driver's stand-in. CUDA has none of it. Those of NVRTC and
// cuBLASLt have stand_in_fail and stand_in_calls too, for functions of their own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "api.h"

extern "C" {

// Random choices follow from this seed from now on. At first: STAND_IN_SEED, else 0.
void stand_in_seed(std::uint64_t seed);

// Bytes of memory that a device has. At first: STAND_IN_MEMORY_BYTES, else 8 GiB.
void stand_in_memory(std::uint64_t bytes);

// Devices there are, 16 at most; before cuInit. At first: STAND_IN_DEVICES, else 1.
void stand_in_devices(int count);

// Has devices answer so when asked for an attribute (CU_DEVICE_ATTRIBUTE_...).
void stand_in_attribute(int attribute, int value);

// Has the `nth` call of a function from now on (1: the next) fail with this code. The function "work" stands for
// pieces of work that run, kernels, copies, fills and products: their failure is the context's, as that of a launch is.
// At first, for all three libraries: STAND_IN_FAIL, a list like `cuMemAlloc_v2:3:2,work:10:719`.
void stand_in_fail(const char* function, std::uint64_t nth, int code);

// Calls of a function, or pieces of "work" run, so far.
std::uint64_t stand_in_calls(const char* function);

// How much there is, over all devices: "bytes" of memory allocated, "most bytes" at any time, "page-locked bytes",
// "allocations", "streams", "events", "modules", "functions", "graphs", "executable graphs", "work" not run yet.
// Anything else: all ones.
std::uint64_t stand_in_count(const char* what);

// Why the last call was refused or the last launch failed, with its NUL, cut to `room`. Returns its length.
std::size_t stand_in_message(char* message, std::size_t room);

// Puts work into a stream, or into the graph that it captures. `run` is called when it runs, each time it does, and
// returns a CUresult; `free` when it never will again, as it is if this fails.
CUresult stand_in_enqueue(CUstream stream, const char* name, CUresult (*run)(void* data), void (*free)(void* data),
                          void* data);

// Whether a range lies in one allocation of device memory.
int stand_in_reaches(std::uintptr_t address, std::size_t bytes);
}
