// Streams, events and graphs as queues of work, and who runs what when.
//
// Nothing runs when it is asked for. Work runs when somebody waits for it, and then in any order that the documented
// rules allow: a stream's work in its order, work behind an awaited event after what the event has captured, a graph's
// nodes after those they depend on, and launches of an executable graph one after another. What comes next is drawn
// at random. A wait is either eager, and then other streams' work runs too, or lazy, and then only what it needs does.
//
// While work runs, the driver is unlocked: threads that wait run work of different streams side by side.
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

// A point in a stream: what an event captures when it is recorded.
struct Mark {
    bool done = false;
    std::chrono::steady_clock::time_point at;
};

// An executable graph's nodes at a launch, children among them. `before[i]` nodes come before node i, and those in
// `after[i]` after it.
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

// What stands in a stream: one of these.
struct Item {
    Shared work;
    std::shared_ptr<Mark> record, wait;
    std::shared_ptr<GraphRun> graph;
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
    bool running = false;  // a thread of the host runs its first item
    bool destroyed = false;
    std::shared_ptr<Capture> capture;
};

struct Event {
    Context* context;
    unsigned flags;
    std::shared_ptr<Mark> mark;        // of the last record
    std::shared_ptr<Capture> capture;  // if that was captured
    bool asked = false;                // by a query, since the last record
};

// A device's primary context.
struct Context {
    int device = 0;
    unsigned retained = 0;
    // Once a launch has failed, every call fails with its code ("the context is left in an inconsistent state",
    // documentation of the results from 700 on), until the context is gone.
    CUresult error = CUDA_SUCCESS;
    std::uint64_t used = 0, most_used = 0, locked = 0;
    std::vector<std::shared_ptr<Stream>> streams;  // destroyed ones too, until their work is done
};

inline std::uint64_t handles = 0;

// Objects behind handles. A handle is never used twice, so one that was destroyed is always known as such.
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
