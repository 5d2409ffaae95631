#include "segfaults.h"

#include <signal.h>
#include <ucontext.h>

#include <cstdlib>
#include <mutex>

#include "driver.h"

namespace stand_in {
namespace {

struct sigaction before[NSIG];

std::uintptr_t stack_pointer_of(const ucontext_t& context) {
#if defined(__x86_64__)
    return static_cast<std::uintptr_t>(context.uc_mcontext.gregs[REG_RSP]);
#elif defined(__aarch64__)
    return context.uc_mcontext.sp;
#endif
}

// Makes the interrupted code leave its fiber when it continues.
void leave(ucontext_t& context, void* outside) {
    auto jump = reinterpret_cast<std::uintptr_t>(&stand_in_jump), to = reinterpret_cast<std::uintptr_t>(outside);
#if defined(__x86_64__)
    context.uc_mcontext.gregs[REG_RIP] = static_cast<greg_t>(jump);
    context.uc_mcontext.gregs[REG_RDI] = static_cast<greg_t>(to);
#elif defined(__aarch64__)
    context.uc_mcontext.pc = jump;
    context.uc_mcontext.regs[0] = to;
#endif
}

// Rust's threads have a small signal stack, so the handler does little.
void handle(int signal, siginfo_t* info, void* raw) {
    Multiprocessor* running = Multiprocessor::running;
    if (running == nullptr) {
        // Restores the previous handler; the instruction faults again.
        sigaction(signal, &before[signal], nullptr);
        return;
    }
    auto& context = *static_cast<ucontext_t*>(raw);
    auto stack = stack_pointer_of(context) & ~(on_host::stack_bytes - 1);
    Fault fault;
    fault.signal = signal;
    fault.address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    fault.thread = on_host::thread_at(reinterpret_cast<void*>(stack))->number;
    fault.is_in_stack = fault.address - stack < on_host::stack_bytes;
    leave(context, running->fault(fault));
}

}  // namespace

Failure explain(const Fault& fault, bool is_beyond_shared) {
    if (fault.signal == SIGFPE) return {CUDA_ERROR_LAUNCH_FAILED, "an integer divided by 0"};
    if (fault.signal == SIGILL) return {CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction"};
    if (fault.is_in_stack) return {CUDA_ERROR_LAUNCH_FAILED, "the stack overrun"};
    if (is_beyond_shared) return {CUDA_ERROR_ILLEGAL_ADDRESS, "access beyond the dynamic shared memory"};
    std::lock_guard<std::mutex> lock(driver().mutex);
    const Arena& arena = driver().host_memory.has(fault.address) ? driver().host_memory : driver().device_memory;
    return {CUDA_ERROR_ILLEGAL_ADDRESS, "access to " + arena.describe(fault.address)};
}

void handle_segfaults() {
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction action {};
        action.sa_sigaction = handle;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&action.sa_mask);
        for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigaction(signal, &action, &before[signal]);
    });
    // Rust's threads have a signal stack, those of other programs may not.
    stack_t has{};
    if (sigaltstack(nullptr, &has) == 0 && has.ss_flags & SS_DISABLE) {
        constexpr size_t bytes = 64 << 10;
        has = {};
        has.ss_sp = std::malloc(bytes);
        has.ss_size = bytes;
        sigaltstack(&has, nullptr);
    }
}

}  // namespace stand_in
