// The driver: its state, the prologue of calls, and the execution of work.
#pragma once

#include <set>
#include <unordered_map>

#include "work.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace stand_in {

struct Module;
struct Function;
struct Executable;

constexpr int most_devices = 16;

// The preconditions of a call.
enum Needs { nothing, initialised, context };

struct Driver {
    std::mutex mutex;
    std::condition_variable changed;  // work has finished or failed

    bool is_initialised = false;
    int devices = 1;
    std::uint64_t memory_bytes = std::uint64_t(8) << 30;  // per device
    std::unordered_map<int, int> attributes;              // overridden attributes
    Context contexts[most_devices];

    Arena device_memory, host_memory;
    std::map<std::uintptr_t, size_t> registered;  // page-locked memory allocated elsewhere
    Handles<Stream> streams;
    Handles<Event> events;
    Handles<Module> modules;
    Handles<Function> functions;
    Handles<Graph> graphs;
    Handles<Node> nodes;
    Handles<Executable> executables;

    Random random{0};
    Script script;
    std::string message;  // details of the last failure, beyond its code
    std::vector<std::unique_ptr<Multiprocessor>> idle;
    // Captures that forbid calls such as cuMemAlloc, on the capturing thread or on all (CU_STREAM_CAPTURE_MODE).
    std::vector<std::weak_ptr<Capture>> captures;

    Driver();

    // Records the reason for a failure and prints it to standard error: failures are usually bugs of the caller.
    CUresult refuse(CUresult code, std::string why);

    // Runs work until `done` or until the context fails. A lazy wait runs only what `wanted` depends on; null waits for all
    // of the context's work.
    CUresult wait(std::unique_lock<std::mutex>& lock, Context& context, Stream* wanted,
                  const std::function<bool()>& done);
    // Runs one work item, if there is any.
    void nudge(std::unique_lock<std::mutex>& lock);
    // Runs what a stream's work depends on, as far as it need not wait for anything outside of the driver.
    void advance(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Stream>& stream);
    // Enqueues an item in a stream, or in the graph that it captures.
    CUresult enqueue(Stream& stream, Item item);
    // The stream that must reach a mark.
    Stream* stream_of(const Mark* mark);
    bool is_idle(const Context& context) const;
    // Invalidates captures after a call that they forbid. Returns whether there was one.
    bool breaks_capture();
    // Releases everything that a context owns.
    void reset(Context& context);

    Failure launch(const Launch& launch, std::uint64_t seed);

private:
    bool is_legal(const Item& item) const;
    Stream* choose();
    Stream* choose_for(Stream* wanted);
    bool is_running() const;
    // Returns false if the item waits for something outside of the driver.
    bool run_first(std::unique_lock<std::mutex>& lock, Stream& stream);
    bool run(std::unique_lock<std::mutex>& lock, Context& context, const Shared& work, bool again);
    void fail(Context& context, const Failure& failure);
};

Driver& driver();

// The calling thread's context.
extern thread_local Context* current;

// The prologue of every call: locks, counts the call, and determines whether it fails immediately.
struct Entry {
    Entry(const char* function, Needs needs);
    std::unique_lock<std::mutex> lock;
    CUresult fault;
};

#define ENTRY(needs)                    \
    Entry entry(__func__, needs);       \
    if (entry.fault != CUDA_SUCCESS) return entry.fault

}  // namespace stand_in
