#include "control.h"

#include "copies.h"
#include "graphs.h"
#include "modules.h"

using namespace stand_in;

namespace {
std::unique_lock<std::mutex> locked_driver() { return std::unique_lock<std::mutex>(driver().mutex); }
}  // namespace

EXPORT void stand_in_seed(std::uint64_t seed) {
    auto lock = locked_driver();
    driver().random = Random(seed);
}

EXPORT void stand_in_memory(std::uint64_t bytes) {
    auto lock = locked_driver();
    driver().memory_bytes = bytes;
}

EXPORT void stand_in_devices(int count) {
    auto lock = locked_driver();
    driver().devices = std::min(std::max(count, 0), most_devices);
}

EXPORT void stand_in_attribute(int attribute, int value) {
    auto lock = locked_driver();
    driver().attributes[attribute] = value;
}

EXPORT void stand_in_fail(const char* function, std::uint64_t nth, int code) {
    auto lock = locked_driver();
    driver().script.fail(function, nth, code);
}

EXPORT std::uint64_t stand_in_calls(const char* function) {
    auto lock = locked_driver();
    return driver().script.made(function);
}

EXPORT std::uint64_t stand_in_count(const char* what) {
    auto lock = locked_driver();
    Driver& all = driver();
    std::uint64_t used = 0, most_used = 0, page_locked = 0, allocations = 0, work = 0;
    for (const Context& context : all.contexts) {
        used += context.used;
        most_used += context.most_used;
        page_locked += context.locked;
        for (const auto& stream : context.streams) work += stream->items.size();
    }
    all.device_memory.each([&](std::uintptr_t, const Arena::Allocation&) { ++allocations; });
    const std::pair<const char*, std::uint64_t> counts[] = {
        {"bytes", used},
        {"most bytes", most_used},
        {"page-locked bytes", page_locked},
        {"allocations", allocations},
        {"streams", all.streams.size()},
        {"events", all.events.size()},
        {"modules", all.modules.size()},
        {"functions", all.functions.size()},
        {"graphs", all.graphs.size()},
        {"executable graphs", all.executables.size()},
        {"work", work},
    };
    for (const auto& [name, count] : counts)
        if (std::strcmp(name, what) == 0) return count;
    return ~std::uint64_t(0);
}

EXPORT std::size_t stand_in_message(char* message, std::size_t room) {
    auto lock = locked_driver();
    if (room > 0) std::snprintf(message, room, "%s", driver().message.c_str());
    return driver().message.size();
}

EXPORT CUresult stand_in_enqueue(CUstream handle, const char* name, CUresult (*run)(void*), void (*free)(void*),
                                 void* data) {
    std::shared_ptr<void> owned(data, free);
    Entry entry(__func__, context);
    if (entry.fault != CUDA_SUCCESS) return entry.fault;
    CUresult fault;
    auto stream = find_stream(handle, fault);
    if (stream == nullptr) return fault;
    std::string title = name;
    Work work{title, [=](std::uint64_t) -> Failure {
                  CUresult code = run(owned.get());
                  bool is_fault = code != CUDA_SUCCESS && code != CUDA_ERROR_NOT_READY;
                  return {code, !is_fault ? "" : title + " uses memory that is not there (any more)"};
              }};
    return driver().enqueue(*stream, {std::make_shared<Work>(std::move(work)), {}, {}, {}});
}

EXPORT int stand_in_reaches(std::uintptr_t address, std::size_t bytes) {
    auto lock = locked_driver();
    return driver().device_memory.holds(address, bytes);
}

EXPORT int stand_in_current_device() { return current == nullptr ? -1 : current->device; }

EXPORT int stand_in_is_captured(CUstream handle) {
    auto lock = locked_driver();
    auto stream = driver().streams.find(handle);
    return stream != nullptr && stream->capture != nullptr;
}

EXPORT void stand_in_advance(CUstream handle) {
    auto lock = locked_driver();
    auto stream = driver().streams.find(handle);
    if (stream != nullptr) driver().advance(lock, stream);
}
