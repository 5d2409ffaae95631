// The interface between kernels built for the host and the driver's stand-in: a thread of a block, its block, and the
// calls by which a thread waits for others.
//
// Included by on_host.h before any kernel, so it includes nothing itself.
#pragma once

namespace on_host {

using u64 = unsigned long long;

struct Index {
    unsigned x, y, z;
};

// A source line of a kernel, for messages.
struct Place {
    const char* file;
    int line;
};

// Barriers of a block. PTX forbids mixing barriers with and without a reduction.
enum Barrier { plain_barrier, or_barrier, and_barrier, count_barrier };

// Operations of a warp. All lanes of a mask must take part in the same one.
enum Exchange { shuffle, ballot, match, sync_warp };

struct Calls {
    int (*barrier)(Barrier kind, int predicate, Place place);
    // `value` is this lane's operand, `source` the lane to read from (shuffle). Returns that lane's value, the lanes with a
    // nonzero value (ballot), or the lanes with the same value (match).
    u64 (*exchange)(Exchange kind, unsigned mask, u64 value, unsigned source, Place place);
    // Asynchronous copies of this thread: begins one, ends a group of them, and waits for all groups but the latest.
    void (*begin_copy)(void* to, const void* from, unsigned bytes, Place place);
    void (*end_group)();
    void (*wait_for_groups)(unsigned latest);
    // Ends the launch with this CUresult. Does not return.
    void (*fail)(int code, const char* why, Place place);
};

struct Block {
    Index index, dimensions, grid;
    unsigned char* shared_bytes;  // dynamic shared memory
    const Calls* calls;
    void* multiprocessor;  // the implementation behind `calls`
};

// Located at the upper end of the stack that the thread runs on.
struct Thread {
    Index index;
    unsigned number;  // x + y * width + z * width * height: 32 consecutive ones are a warp
    const Block* block;
};

// Stacks are aligned to their size, so that a thread is found from its stack pointer, without a thread-local variable, in
// any fiber and module.
constexpr u64 stack_bytes = 256 << 10;

// The thread whose stack contains an address. If all stacks started at the same offset of a page, they would share a few
// cache sets, so only one in 16 does.
inline __attribute__((always_inline)) Thread* thread_at(const void* address) {
    u64 stack = reinterpret_cast<u64>(address) & ~(stack_bytes - 1);
    u64 colour = stack / stack_bytes % 16;
    return reinterpret_cast<Thread*>(stack + stack_bytes - 64 - colour * 256);
}
static_assert(sizeof(Thread) <= 64, "lies above the stack");

inline __attribute__((always_inline)) Thread* this_thread() {
    const void* stack_pointer;
#if defined(__x86_64__)
    asm("mov %%rsp, %0" : "=r"(stack_pointer));
#elif defined(__aarch64__)
    asm("mov %0, sp" : "=r"(stack_pointer));
#else
#error "the stand-in knows the stacks of x86-64 and aarch64"
#endif
    return thread_at(stack_pointer);
}

// Exported by a module for each kernel, as `on_host_kernel_NAME`.
struct Kernel {
    void (*run)(const void* args);
    unsigned args_bytes;
    unsigned most_threads;
};

}  // namespace on_host
