// The prologue of calls and the execution of work; see work.h for the rules.
#include "driver.h"

#include <cstdio>
#include <cstdlib>

#include "graphs.h"
#include "modules.h"
#include "segfaults.h"

namespace stand_in {

thread_local Context* current = nullptr;

// How long a wait sleeps when it finds work that waits for something outside of the driver.
constexpr std::chrono::microseconds outside_interval(50);

Driver& driver() {
    // Never destroyed: threads may make calls until the process exits.
    static Driver* driver = new Driver;
    return *driver;
}

Driver::Driver() {
    auto number = [](const char* name, std::uint64_t otherwise) {
        const char* text = std::getenv(name);
        return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
    };
    random = Random(number("MILLSTREAM_STAND_IN_SEED", 0));
    memory_bytes = number("MILLSTREAM_STAND_IN_MEMORY_BYTES", memory_bytes);
    devices = int(std::min<std::uint64_t>(number("MILLSTREAM_STAND_IN_DEVICES", 1), most_devices));
    for (int i = 0; i < most_devices; ++i) contexts[i].device = i;
}

Entry::Entry(const char* function, Needs needs) : lock(driver().mutex) {
    Driver& all = driver();
    fault = all.script.call(function);
    if (fault != CUDA_SUCCESS) {
        all.message = format("%s failed by script", function);
    } else if (needs >= initialised && !all.is_initialised) {
        fault = all.refuse(CUDA_ERROR_NOT_INITIALIZED, format("%s before cuInit", function));
    } else if (needs == context && current == nullptr) {
        fault = all.refuse(CUDA_ERROR_INVALID_CONTEXT, format("%s without a current context", function));
    } else if (needs == context && current->retained == 0) {
        fault = all.refuse(CUDA_ERROR_INVALID_CONTEXT, format("%s in a context that was released", function));
    } else if (needs == context) {
        fault = current->error;
    }
}

CUresult Driver::refuse(CUresult code, std::string why) {
    std::fprintf(stderr, "stand-in: %s\n", why.c_str());
    message = std::move(why);
    return code;
}

CUresult Driver::enqueue(Stream& stream, Item item) {
    if (stream.capture == nullptr) {
        stream.items.push_back(std::move(item));
        return CUDA_SUCCESS;
    }
    Capture& capture = *stream.capture;
    if (capture.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (item.work == nullptr) return CUDA_SUCCESS;
    auto node = std::make_shared<Node>();
    node->work = std::move(item.work);
    if (capture.last != nullptr) node->dependencies.push_back(capture.last.get());
    capture.last = node;
    capture.graph->nodes.push_back(std::move(node));
    return CUDA_SUCCESS;
}

bool Driver::breaks_capture() {
    bool broken = false;
    for (size_t i = 0; i < captures.size();) {
        auto capture = captures[i].lock();
        if (capture == nullptr || capture->ended) {
            captures.erase(captures.begin() + long(i));
            continue;
        }
        bool forbids = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
                       (capture->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
                        capture->thread == std::this_thread::get_id());
        if (forbids) capture->invalidated = broken = true;
        ++i;
    }
    return broken;
}

bool Driver::is_legal(const Item& item) const {
    if (item.wait != nullptr) return item.wait->done;
    if (item.graph != nullptr) return item.graph->previous == nullptr || item.graph->previous->done;
    return true;
}

bool Driver::is_idle(const Context& context) const {
    for (const auto& stream : context.streams)
        if (!stream->items.empty()) return false;
    return true;
}

Stream* Driver::stream_of(const Mark* mark) {
    for (const Context& context : contexts)
        for (const auto& stream : context.streams)
            for (const Item& item : stream->items)
                if (item.record.get() == mark || (item.graph != nullptr && item.graph->finished.get() == mark))
                    return stream.get();
    return nullptr;
}

bool Driver::is_running() const {
    for (const Context& context : contexts)
        for (const auto& stream : context.streams)
            if (stream->running) return true;
    return false;
}

// A random stream whose first item may run now.
Stream* Driver::choose() {
    Stream* chosen = nullptr;
    unsigned legal = 0;
    for (const Context& context : contexts)
        for (const auto& stream : context.streams) {
            if (stream->running || stream->items.empty() || !is_legal(stream->items.front())) continue;
            if (random.below(++legal) == 0) chosen = stream.get();
        }
    return chosen;
}

// The stream that `wanted` depends on, if its first item may run now.
Stream* Driver::choose_for(Stream* wanted) {
    while (wanted != nullptr && !wanted->items.empty() && !is_legal(wanted->items.front())) {
        const Item& item = wanted->items.front();
        wanted = stream_of(item.wait != nullptr ? item.wait.get() : item.graph->previous.get());
    }
    return wanted == nullptr || wanted->items.empty() || wanted->running ? nullptr : wanted;
}

CUresult Driver::wait(std::unique_lock<std::mutex>& lock, Context& context, Stream* wanted,
                      const std::function<bool()>& done) {
    bool lazy = wanted != nullptr && random.below(2) == 0;
    while (context.error == CUDA_SUCCESS && !done()) {
        Stream* stream = lazy ? choose_for(wanted) : choose();
        if (stream != nullptr) {
            if (!run_first(lock, *stream)) changed.wait_for(lock, outside_interval);
        } else if (is_running()) changed.wait(lock);
        else return refuse(CUDA_ERROR_UNKNOWN, "a wait for what no stream is ever going to do");
    }
    return context.error;
}

void Driver::nudge(std::unique_lock<std::mutex>& lock) {
    Stream* stream = choose();
    if (stream != nullptr) run_first(lock, *stream);
}

void Driver::advance(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Stream>& stream) {
    for (Stream* next = choose_for(stream.get()); next != nullptr; next = choose_for(stream.get()))
        if (!run_first(lock, *next)) break;
}

bool Driver::run_first(std::unique_lock<std::mutex>& lock, Stream& stream) {
    Context& context = *stream.context;
    stream.running = true;
    Item& item = stream.items.front();
    bool finished = true, waits = false;
    if (item.record != nullptr) {
        item.record->done = true;
        item.record->at = std::chrono::steady_clock::now();
    } else if (item.work != nullptr) {
        finished = run(lock, context, item.work, item.begun);
        waits = !finished;
        item.begun = true;
    } else if (item.graph != nullptr) {
        GraphRun& graph = *item.graph;
        if (graph.left > 0) {
            std::swap(graph.ready[random.below(graph.ready.size())], graph.ready.back());
            unsigned node = graph.ready.back();
            graph.ready.pop_back();
            if (graph.plan->work[node] != nullptr) run(lock, context, graph.plan->work[node], false);
            for (unsigned after : graph.plan->after[node])
                if (--graph.before[after] == 0) graph.ready.push_back(after);
            --graph.left;
        }
        finished = graph.left == 0;
        if (finished) graph.finished->done = true;
    }
    stream.running = false;
    // A failure discards all pending work.
    if (finished && !stream.items.empty()) stream.items.pop_front();
    if (context.error != CUDA_SUCCESS) stream.items.clear();
    changed.notify_all();
    return !waits;
}

bool Driver::run(std::unique_lock<std::mutex>& lock, Context& context, const Shared& work, bool again) {
    std::uint64_t seed = random.next();
    int scripted = again ? 0 : script.call("work");
    if (scripted == 0 && !again) scripted = script.call(format("work@%d", context.device));
    Failure failure;
    if (scripted != 0) {
        failure = {scripted, work->name + " failed by script"};
    } else {
        Shared kept = work;
        lock.unlock();
        failure = kept->run(seed);
        lock.lock();
    }
    if (failure.code == CUDA_ERROR_NOT_READY) return false;
    if (failure.code != CUDA_SUCCESS) fail(context, failure);
    return true;
}

void Driver::fail(Context& context, const Failure& failure) {
    if (context.error != CUDA_SUCCESS) return;
    context.error = refuse(failure.code, failure.why);
    for (const auto& stream : context.streams)
        if (!stream->running) stream->items.clear();
}

Failure Driver::launch(const Launch& launch, std::uint64_t seed) {
    handle_segfaults();
    std::unique_ptr<Multiprocessor> multiprocessor;
    {
        std::lock_guard<std::mutex> lock(mutex);
        if (!idle.empty()) {
            multiprocessor = std::move(idle.back());
            idle.pop_back();
        }
    }
    if (multiprocessor == nullptr) multiprocessor = std::make_unique<Multiprocessor>();
    Failure failure = multiprocessor->run(launch, seed);
    std::lock_guard<std::mutex> lock(mutex);
    idle.push_back(std::move(multiprocessor));
    return failure;
}

void Driver::reset(Context& context) {
    auto is_its = [&](const auto& object) { return object.context == &context; };
    context.streams.clear();
    streams.remove_if(is_its);
    events.remove_if(is_its);
    functions.remove_if(is_its);
    modules.remove_if(is_its);
    nodes.remove_if(is_its);
    graphs.remove_if(is_its);
    executables.remove_if(is_its);
    for (Arena* arena : {&device_memory, &host_memory}) {
        std::vector<std::uintptr_t> its;
        arena->each([&](std::uintptr_t address, const Arena::Allocation& allocation) {
            if (allocation.owner == context.device) its.push_back(address);
        });
        for (std::uintptr_t address : its) arena->free(address);
    }
    int device = context.device;
    context = Context();
    context.device = device;
}

}  // namespace stand_in
