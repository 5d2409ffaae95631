// Executes a block: runs its threads one after another, each until it waits or returns.
//
// Ready threads are queued. A thread that has not started runs on whichever fiber is free, so a kernel without barriers
// costs one call per thread; a waiting thread keeps its fiber, and another one runs. The order of threads at the start and
// after each barrier is random (Order), and so is whether lanes served by an exchange continue immediately or after all
// others.
//
// An asynchronous copy reads its source when it begins or when its thread waits for it, at random. It writes its destination at
// that wait, as late as a device may; until then the destination is poisoned.
//
// If no thread is ready but not all have returned, some wait forever: at a barrier that not all threads reach, or in an
// exchange that lanes of its mask skip. A device would hang, or continue with undefined values; here the launch fails with a
// message. Threads that have returned count as missing, too, although compute capability 7.0 and later tolerates that.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "api.h"
#include "fibers.h"
#include "random.h"

namespace stand_in {

// The contents of unwritten memory: NaN in every floating-point format, and indices far out of bounds.
constexpr unsigned char poison = 0xff;
constexpr unsigned most_threads = 1024;
constexpr size_t most_shared_bytes = 227 << 10;  // per block, compute capability 9.0

inline std::string format(const char* text, ...) __attribute__((format(printf, 1, 2)));
inline std::string format(const char* text, ...) {
    char buffer[1024];
    va_list values;
    va_start(values, text);
    vsnprintf(buffer, sizeof(buffer), text, values);
    va_end(values);
    return buffer;
}

struct Failure {
    CUresult code = CUDA_SUCCESS;
    std::string why;
};

// A signal raised while a kernel ran.
struct Fault {
    int signal = 0;
    std::uintptr_t address = 0;
    unsigned thread = 0;
    bool is_in_stack = false;
};

struct Launch {
    const on_host::Kernel* kernel = nullptr;
    const char* name = "";
    on_host::Index grid{}, dimensions{};
    size_t shared_bytes = 0;
    const void* args = nullptr;
    // The kernel's static shared memory in this host thread.
    void* static_shared = nullptr;
    size_t static_bytes = 0;
};

// Executes blocks, for one host thread at a time.
class Multiprocessor {
public:
    Multiprocessor() : fibers_(fiber_main) {
        // Dynamic shared memory ends at an inaccessible page.
        constexpr size_t room = 256 << 10, beyond = 64 << 10;
        static_assert(room >= most_shared_bytes && room % beyond == 0, "whole pages of any size");
        void* mapped = mmap(nullptr, room + beyond, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) throw std::bad_alloc();
        shared_end_ = static_cast<unsigned char*>(mapped) + room;
        mprotect(shared_end_, beyond, PROT_NONE);
    }
    Multiprocessor(const Multiprocessor&) = delete;

    // Executes all blocks of a launch, in an order determined by the seed.
    Failure run(const Launch& launch, std::uint64_t seed);

    // For the signal handler, which has little stack: records why the running launch failed, and returns where to
    // continue.
    void* fault(const Fault& fault) {
        fault_ = fault;
        return outside_;
    }

    bool is_beyond_shared(std::uintptr_t address) const {
        return address - reinterpret_cast<std::uintptr_t>(shared_end_) < (64 << 10);
    }

    // The block that this host thread is executing.
    static thread_local Multiprocessor* running;

private:
    enum State : unsigned char { unstarted, ready, at_barrier, in_exchange, returned };

    // A lane that has reached an exchange.
    struct Lane {
        on_host::u64 given, taken;
        on_host::Place place;
        unsigned mask;
        on_host::Exchange kind;
        unsigned source;
    };
    struct Warp {
        unsigned arrived;
        Lane lanes[32];
    };

    // The asynchronous copies that a thread has begun and not waited for, and the groups that it has ended.
    struct Copy {
        void* to;
        const void* from;
        unsigned bytes, group;
        // Whether the source was read at the start of the copy.
        bool is_taken;
        unsigned char taken[16];
    };
    struct Copies {
        std::vector<Copy> begun;
        unsigned groups = 0;
    };

    void run_block(std::uint64_t index);
    void forget_copies();
    void explain_fault();
    void fill_queue(State from);
    void push(unsigned thread) { queue_[tail_++ % queue_room] = static_cast<unsigned short>(thread); }
    void push_front(unsigned thread) { queue_[--head_ % queue_room] = static_cast<unsigned short>(thread); }

    static Multiprocessor& of_this_thread() {
        return *static_cast<Multiprocessor*>(on_host::this_thread()->block->multiprocessor);
    }
    static void fiber_main();
    [[gnu::noinline]] Fiber* begin_fiber(unsigned thread);
    void start(Fiber* self, unsigned thread);
    bool next_in_place(Fiber* self, unsigned& thread);
    void wait(unsigned thread, State state);
    void resume_next(void** save);
    [[noreturn]] void leave() { stand_in_jump(outside_); }
    [[noreturn, gnu::cold, gnu::noinline]] void stuck();
    [[gnu::noinline]] void complete(Warp& warp, unsigned mask, unsigned last, unsigned first_thread);
    std::string where(unsigned thread) const;
    [[noreturn]] void end(CUresult code, std::string why);
    // Not inlined, so that waiting threads occupy little stack.
    [[noreturn, gnu::cold, gnu::noinline]] void end_apart(unsigned thread, on_host::Place place);
    [[noreturn, gnu::cold, gnu::noinline]] void end_unnamed(unsigned thread, unsigned lane, unsigned mask,
                                                            on_host::Place place);
    [[noreturn, gnu::cold, gnu::noinline]] void end_exchange_apart(const Warp& warp, unsigned first_thread,
                                                                   unsigned lane, unsigned other);

    static int barrier(on_host::Barrier kind, int predicate, on_host::Place place);
    static on_host::u64 exchange(on_host::Exchange kind, unsigned mask, on_host::u64 value, unsigned source,
                                 on_host::Place place);
    static void begin_copy(void* to, const void* from, unsigned bytes, on_host::Place place);
    static void end_group();
    static void wait_for_groups(unsigned latest);
    static void fail(int code, const char* why, on_host::Place place);
    static constexpr on_host::Calls calls{barrier, exchange, begin_copy, end_group, wait_for_groups, fail};

    static constexpr unsigned queue_room = 2 * most_threads;

    Fibers fibers_;
    unsigned char* shared_end_;
    void* outside_ = nullptr;  // the stack pointer of run_block, while fibers run
    Random random_{0};
    const Launch* launch_ = nullptr;
    Failure failure_;
    Fault fault_;

    on_host::Block block_{};
    unsigned count_ = 0, returned_ = 0;
    State state_[most_threads];
    Fiber* fiber_[most_threads];
    void* suspended_[most_threads]{};  // the stack pointers of waiting threads
    unsigned short queue_[queue_room]{};  // ready threads; read past the end by a prefetch
    unsigned head_ = 0, tail_ = 0;
    bool eager_lanes_ = false;
    Warp warps_[most_threads / 32];
    Copies copies_[most_threads];
    bool has_copies_ = false;

    on_host::Barrier barrier_kind_{};
    on_host::Place barrier_place_{};
    unsigned barrier_arrived_ = 0, barrier_true_ = 0;
    int barrier_result_ = 0;
};

}  // namespace stand_in
