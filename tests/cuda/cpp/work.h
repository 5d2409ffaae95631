// Streams, events and graphs as queues of work, and the order in which it runs.
//
// Nothing runs when it is enqueued. Work runs when a thread waits for it, in any order that the documentation allows: a
// stream's work in order, work behind an awaited event after the work that the event captured, a graph's nodes after their
// dependencies, and launches of an executable graph one after another. The next item is chosen at random. A wait is either
// eager, and also runs work of other streams, or lazy, and runs only what it depends on.
//
// The driver is unlocked while work runs: waiting threads run work of different streams in parallel.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "memory.h"
#include "random.h"
#include "script.h"

namespace stand_in {

struct Work {
    std::string name;
    std::function<Failure(std::uint64_t seed)> run;
};
using Shared = std::shared_ptr<const Work>;

// A point in a stream, captured when an event is recorded.
struct Mark {
    bool done = false;
    std::chrono::steady_clock::time_point at;
};

// The nodes of an executable graph at a launch, including those of child graphs. `before[i]` counts the predecessors of
// node i, and `after[i]` lists its successors.
struct Plan {
    std::vector<Shared> work;  // null: nothing to do
    std::vector<std::vector<unsigned>> after;
    std::vector<unsigned> before;
};

struct GraphRun {
    std::shared_ptr<const Plan> plan;
    std::shared_ptr<Mark> previous, finished;
    std::vector<unsigned> before;
    std::vector<unsigned> ready;
    size_t left;
};

// An item of a stream: exactly one of these.
struct Item {
    Shared work;
    std::shared_ptr<Mark> record, wait;
    std::shared_ptr<GraphRun> graph;
    bool begun = false;  // the work was run, and waits for something outside of the driver
};

struct Graph;
struct Node;

struct Capture {
    int mode;
    std::thread::id thread;
    std::shared_ptr<Graph> graph;
    std::shared_ptr<Node> last;
    bool invalidated = false;
    bool ended = false;
};

struct Context;

struct Stream {
    Context* context;
    std::deque<Item> items;
    bool running = false;  // a host thread is running its first item
    bool destroyed = false;
    std::shared_ptr<Capture> capture;
};

struct Event {
    Context* context;
    unsigned flags;
    std::shared_ptr<Mark> mark;        // the last record
    std::shared_ptr<Capture> capture;  // set if that was captured
    bool asked = false;                // queried since the last record
};

// A device's primary context.
struct Context {
    int device = 0;
    unsigned retained = 0;
    // After a failed launch, every call fails with its code ("the context is left in an inconsistent state", documentation
    // of the results from 700 on), until the context is destroyed.
    CUresult error = CUDA_SUCCESS;
    std::uint64_t used = 0, most_used = 0, locked = 0;
    std::vector<std::shared_ptr<Stream>> streams;  // including destroyed ones with pending work
};

inline std::uint64_t handles = 0;

// Objects behind handles. Handles are never reused, so a destroyed one is always recognized.
template <typename T>
class Handles {
public:
    template <typename Handle>
    void add(std::shared_ptr<T> object, Handle* handle) {
        *handle = reinterpret_cast<Handle>(0x500000000000 + ++handles * 16);
        objects_[*handle] = std::move(object);
    }
    std::shared_ptr<T> find(const void* handle) const {
        auto found = objects_.find(handle);
        return found == objects_.end() ? nullptr : found->second;
    }
    bool remove(const void* handle) { return objects_.erase(handle) != 0; }
    size_t size() const { return objects_.size(); }
    void clear() { objects_.clear(); }
    template <typename Wanted>
    void remove_if(Wanted wanted) {
        for (auto at = objects_.begin(); at != objects_.end();) at = wanted(*at->second) ? objects_.erase(at) : ++at;
    }

private:
    std::unordered_map<const void*, std::shared_ptr<T>> objects_;
};

}  // namespace stand_in
