// The stacks of a block's threads, and the switch between them.
//
// The switch saves only the registers that the calling convention requires a callee to preserve; ucontext would call the
// kernel for the signal mask each time. Stacks are created on demand and reused. Each ends in an inaccessible page, so
// that a stack overflow of a kernel faults (segfaults.h).
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "thread.h"

extern "C" {
// Suspends the running context, leaving its stack pointer in `*from`, and resumes that at `to`.
void stand_in_switch(void** from, void* to);
// Resumes the context at `to`; the running one is discarded.
[[noreturn]] void stand_in_jump(void* to);
}

namespace stand_in {

struct Fiber {
    on_host::Thread* thread;  // found by code on this stack from its stack pointer
    void* stack_pointer;      // while suspended
    void* first;              // the initial stack pointer
    unsigned next;            // the thread to run when resumed from the pool
};

class Fibers {
public:
    explicit Fibers(void (*entry)()) : entry_(entry) {}
    Fibers(const Fibers&) = delete;

    // A fiber that starts at the entry, or is suspended where it returned to the pool.
    Fiber* acquire() {
        if (pool_.empty()) make();
        Fiber* fiber = pool_.back();
        pool_.pop_back();
        return fiber;
    }

    void release(Fiber* fiber) { pool_.push_back(fiber); }

    // Resets all fibers; suspended contexts are discarded.
    void reset() {
        pool_.clear();
        for (auto& fiber : all_) {
            begin(*fiber);
            pool_.push_back(fiber.get());
        }
    }

private:
    void make() {
        using on_host::stack_bytes;
        if (all_.size() % stacks_at_once == 0) {
            // One more than needed, to align them; untouched pages use no memory.
            size_t bytes = (stacks_at_once + 1) * stack_bytes;
            void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
            if (mapped == MAP_FAILED) throw std::bad_alloc();
            next_ = (reinterpret_cast<std::uintptr_t>(mapped) + stack_bytes - 1) & ~(stack_bytes - 1);
        }
        auto* low = reinterpret_cast<void*>(next_);
        next_ += stack_bytes;
        mprotect(low, size_t(sysconf(_SC_PAGESIZE)), PROT_NONE);
        auto fiber = std::make_unique<Fiber>();
        fiber->thread = on_host::thread_at(low);
        fiber->first = reinterpret_cast<char*>(fiber->thread) - frame_bytes;
        begin(*fiber);
        pool_.push_back(fiber.get());
        all_.push_back(std::move(fiber));
    }

    // As if the entry had been called and suspended before its first instruction.
    void begin(Fiber& fiber) {
        auto* frame = static_cast<std::uintptr_t*>(fiber.first);
        auto entry = reinterpret_cast<std::uintptr_t>(entry_);
#if defined(__x86_64__)
        for (int i = 0; i < 6; ++i) frame[i] = 0;
        frame[6] = entry;
        frame[7] = 0;
#elif defined(__aarch64__)
        for (int i = 0; i < 20; ++i) frame[i] = 0;
        frame[11] = entry;
#endif
        fiber.stack_pointer = frame;
    }

    static constexpr size_t stacks_at_once = 128;
    static constexpr size_t frame_bytes = 192;  // room for the first frame, aligned like one

    void (*entry_)();
    std::uintptr_t next_ = 0;
    std::vector<std::unique_ptr<Fiber>> all_;
    std::vector<Fiber*> pool_;
};

}  // namespace stand_in
