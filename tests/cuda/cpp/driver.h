// The driver as a whole: what it holds, how a call begins, and how work is run.
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

// What a call needs before it does anything.
enum Needs { nothing, initialised, context };

struct Driver {
    std::mutex mutex;
    std::condition_variable changed;  // work has been done, or has failed

    bool is_initialised = false;
    int devices = 1;
    std::uint64_t memory_bytes = std::uint64_t(8) << 30;  // of each device
    std::unordered_map<int, int> attributes;              // that differ from the usual
    Context contexts[most_devices];

    Arena device_memory, host_memory;
    std::map<std::uintptr_t, size_t> registered;  // page-locked memory that was not allocated here
    Handles<Stream> streams;
    Handles<Event> events;
    Handles<Module> modules;
    Handles<Function> functions;
    Handles<Graph> graphs;
    Handles<Node> nodes;
    Handles<Executable> executables;

    Random random{0};
    Script script;
    std::string message;  // why the last call failed, as far as there is more to say than its code
    std::vector<std::unique_ptr<Multiprocessor>> idle;
    // Captures that forbid calls like cuMemAlloc: on the thread that began them, or on all (CU_STREAM_CAPTURE_MODE).
    std::vector<std::weak_ptr<Capture>> captures;

    Driver();

    // Notes why, and says so on standard error: what is refused is mostly a defect of the caller.
    CUresult refuse(CUresult code, std::string why);

    // Runs work until `done` or until the context fails. A lazy wait runs what `wanted` needs and nothing else; null:
    // the wait is for all of the context's.
    CUresult wait(std::unique_lock<std::mutex>& lock, Context& context, Stream* wanted,
                  const std::function<bool()>& done);
    // Runs one piece of work, if there is any.
    void nudge(std::unique_lock<std::mutex>& lock);
    // Puts an item into a stream, or into the graph that it captures.
    CUresult enqueue(Stream& stream, Item item);
    // The stream in which a mark is to be reached.
    Stream* stream_of(const Mark* mark);
    bool is_idle(const Context& context) const;
    // Ends a capture in error when a call was made that it forbids; whether there was one.
    bool breaks_capture();
    // Forgets all that a context holds.
    void reset(Context& context);

    Failure launch(const Launch& launch, std::uint64_t seed);

private:
    bool is_legal(const Item& item) const;
    Stream* choose();
    Stream* choose_for(Stream* wanted);
    bool is_running() const;
    void run_first(std::unique_lock<std::mutex>& lock, Stream& stream);
    void run(std::unique_lock<std::mutex>& lock, Context& context, const Shared& work);
    void fail(Context& context, const Failure& failure);
};

Driver& driver();

// The calling thread's context.
extern thread_local Context* current;

// Begins every call: locks, counts it, and finds whether it fails before it does anything.
struct Entry {
    Entry(const char* function, Needs needs);
    std::unique_lock<std::mutex> lock;
    CUresult fault;
};

#define ENTRY(needs)                    \
    Entry entry(__func__, needs);       \
    if (entry.fault != CUDA_SUCCESS) return entry.fault

}  // namespace stand_in
