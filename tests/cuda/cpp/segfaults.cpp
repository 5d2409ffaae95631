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

// Has the interrupted code go on by leaving its fiber.
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

// Called where the kernel's code stands, which holds no lock of ours.
void handle(int signal, siginfo_t* info, void* raw) {
    Multiprocessor* running = Multiprocessor::running;
    if (running == nullptr) {
        // As if there were no handler of ours: the instruction faults again, for the one before.
        sigaction(signal, &before[signal], nullptr);
        return;
    }
    auto& context = *static_cast<ucontext_t*>(raw);
    auto stack = stack_pointer_of(context) & ~(on_host::stack_bytes - 1);
    unsigned thread = on_host::thread_at(reinterpret_cast<void*>(stack))->number;
    auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    CUresult code = CUDA_ERROR_ILLEGAL_ADDRESS;
    std::string what;
    if (signal == SIGFPE) {
        code = CUDA_ERROR_LAUNCH_FAILED;
        what = "an integer was divided by 0";
    } else if (signal == SIGILL) {
        code = CUDA_ERROR_ILLEGAL_INSTRUCTION;
        what = "an illegal instruction";
    } else if (address >= stack && address < stack + on_host::stack_bytes) {
        code = CUDA_ERROR_LAUNCH_FAILED;
        what = "the stack was overrun";
    } else if (running->is_beyond_shared(address)) {
        what = "access beyond the dynamic shared memory";
    } else {
        std::lock_guard<std::mutex> lock(driver().mutex);
        const Arena& arena = driver().host_memory.has(address) ? driver().host_memory : driver().device_memory;
        what = "access to " + arena.describe(address);
    }
    leave(context, running->fault(code, what, thread));
}

}  // namespace

void handle_segfaults() {
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction action {};
        action.sa_sigaction = handle;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&action.sa_mask);
        for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigaction(signal, &action, &before[signal]);
    });
    // Threads of Rust have a stack for signals, those of other programs may not.
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
