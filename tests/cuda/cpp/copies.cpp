// Copies and fills.
//
// Copies between host and device follow "API synchronization behavior" of the driver's documentation: from pageable
// memory the bytes are staged before the call returns, into pageable memory the call returns when the copy is done, and
// page-locked memory is read or written when the copy runs.
#include "copies.h"

namespace stand_in {
namespace {

// Why a range of device memory cannot be used; empty if it can.
std::string unreachable(const char* what, std::uintptr_t address, size_t bytes) {
    const Arena& memory = driver().device_memory;
    if (memory.holds(address, bytes)) return "";
    return format("%s %zu bytes at %s", what, bytes, memory.describe(address).c_str());
}

// The same for either side of a copy; host memory must be page-locked.
std::string unusable(const char* what, const Rows& rows, Area area) {
    if (rows.on_device) return unreachable(what, rows.at, area.span(rows));
    if (locked(rows.at, area.span(rows)) == page_locked) return "";
    return format("%s memory of the host that is not page-locked (any more)", what);
}

// Graphs may outlive the memory they use, so it is checked again when work runs.
Failure illegal(std::string why) {
    if (why.empty()) return {};
    return {CUDA_ERROR_ILLEGAL_ADDRESS, std::move(why)};
}

void copy_rows(const Rows& to, const Rows& from, Area area) {
    for (size_t row = 0; row < area.height; ++row)
        std::memmove(reinterpret_cast<void*>(to.at + row * to.pitch),
                     reinterpret_cast<void*>(from.at + row * from.pitch), area.width);
}

CUresult check(const Rows& to, const Rows& from, Area area) {
    if (area.height > 1 && (to.pitch < area.width || from.pitch < area.width))
        return driver().refuse(CUDA_ERROR_INVALID_VALUE, "a copy of rows that are longer than their pitch");
    for (const Rows* rows : {&to, &from}) {
        if (!rows->on_device) continue;
        std::string why = unreachable(rows == &to ? "a copy to" : "a copy from", rows->at, area.span(*rows));
        if (!why.empty()) return driver().refuse(CUDA_ERROR_INVALID_VALUE, std::move(why));
    }
    return CUDA_SUCCESS;
}

// From pageable memory: the work owns a copy of the bytes.
Shared make_staged(Rows to, Rows from, Area area) {
    auto staged = std::make_shared<std::vector<unsigned char>>(area.width * area.height);
    Rows rows{reinterpret_cast<std::uintptr_t>(staged->data()), area.width, false};
    copy_rows(rows, from, area);
    return std::make_shared<Work>(Work{"a copy", [=](std::uint64_t) -> Failure {
                                           {
                                               std::lock_guard<std::mutex> lock(driver().mutex);
                                               std::string why = unreachable("a copy to", to.at, area.span(to));
                                               if (!why.empty()) return illegal(std::move(why));
                                           }
                                           copy_rows(to, {reinterpret_cast<std::uintptr_t>(staged->data()),
                                                          area.width, false}, area);
                                           return {};
                                       }});
}

// Into pageable memory: only the device side needs a check, because the caller waits.
Shared make_awaited(Rows to, Rows from, Area area) {
    return std::make_shared<Work>(Work{"a copy", [=](std::uint64_t) -> Failure {
                                           copy_rows(to, from, area);
                                           return {};
                                       }});
}

CUresult copy(Entry& entry, Rows to, Rows from, Area area, CUstream handle) {
    CUresult fault;
    auto stream = find_stream(handle, fault);
    if (fault != CUDA_SUCCESS || area.is_empty()) return fault;
    if (!to.on_device && !from.on_device)
        return driver().refuse(CUDA_ERROR_INVALID_VALUE, "a copy from host to host");
    fault = check(to, from, area);
    if (fault != CUDA_SUCCESS) return fault;
    const Rows* host = !to.on_device ? &to : !from.on_device ? &from : nullptr;
    Locked held = host == nullptr ? page_locked : locked(host->at, area.span(*host));
    if (held == partly)
        return driver().refuse(CUDA_ERROR_INVALID_VALUE, "a copy of memory of which a part is page-locked");
    if (held == page_locked) {
        Shared work;
        fault = make_copy(to, from, area, work);
        return fault != CUDA_SUCCESS ? fault : driver().enqueue(*stream, {work, {}, {}, {}});
    }
    if (stream->capture != nullptr) {
        stream->capture->invalidated = true;
        return driver().refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a copy of pageable memory in a capture");
    }
    if (host == &from) return driver().enqueue(*stream, {make_staged(to, from, area), {}, {}, {}});
    auto mark = std::make_shared<Mark>();
    stream->items.push_back({make_awaited(to, from, area), {}, {}, {}});
    stream->items.push_back({{}, mark, {}, {}});
    return driver().wait(entry.lock, *stream->context, stream.get(), [&] { return mark->done; });
}

Rows device(CUdeviceptr at) { return {at, 0, true}; }
Rows host(const void* at) { return {reinterpret_cast<std::uintptr_t>(at), 0, false}; }

}  // namespace

Locked locked(std::uintptr_t address, size_t bytes) {
    Driver& all = driver();
    if (all.host_memory.has(address)) return all.host_memory.holds(address, bytes) ? page_locked : partly;
    auto found = all.registered.upper_bound(address + bytes - 1);
    if (found == all.registered.begin()) return pageable;
    --found;
    std::uintptr_t end = found->first + found->second;
    if (address >= end) return pageable;
    return address >= found->first && address + bytes <= end ? page_locked : partly;
}

std::shared_ptr<Stream> find_stream(CUstream handle, CUresult& fault) {
    auto stream = driver().streams.find(handle);
    fault = CUDA_SUCCESS;
    if (stream == nullptr)
        fault = driver().refuse(CUDA_ERROR_INVALID_HANDLE, handle == nullptr ? "the default stream: not stood in for"
                                                                             : "a stream that was destroyed");
    return stream;
}

CUresult make_copy(Rows to, Rows from, Area area, Shared& work) {
    CUresult fault = check(to, from, area);
    if (fault != CUDA_SUCCESS) return fault;
    work = std::make_shared<Work>(Work{"a copy", [=](std::uint64_t) -> Failure {
                                           {
                                               std::lock_guard<std::mutex> lock(driver().mutex);
                                               std::string why = unusable("a copy to", to, area);
                                               if (why.empty()) why = unusable("a copy from", from, area);
                                               if (!why.empty()) return illegal(std::move(why));
                                           }
                                           copy_rows(to, from, area);
                                           return {};
                                       }});
    return CUDA_SUCCESS;
}

CUresult make_fill(CUdeviceptr at, size_t pitch, unsigned value, unsigned element, size_t elements, size_t rows,
                   Shared& work) {
    if (element != 1 && element != 2 && element != 4)
        return driver().refuse(CUDA_ERROR_INVALID_VALUE, format("a fill of elements of %u bytes", element));
    if (at % element != 0 || (rows > 1 && (pitch % element != 0 || pitch < elements * element)))
        return driver().refuse(CUDA_ERROR_INVALID_VALUE, "a fill that is not aligned to its elements");
    size_t span = (rows - 1) * pitch + elements * element;
    std::string why = unreachable("a fill of", at, span);
    if (!why.empty()) return driver().refuse(CUDA_ERROR_INVALID_VALUE, std::move(why));
    work = std::make_shared<Work>(Work{"a fill", [=](std::uint64_t) -> Failure {
                                           {
                                               std::lock_guard<std::mutex> lock(driver().mutex);
                                               std::string why = unreachable("a fill of", at, span);
                                               if (!why.empty()) return illegal(std::move(why));
                                           }
                                           for (size_t row = 0; row < rows; ++row)
                                               for (size_t i = 0; i < elements; ++i)
                                                   std::memcpy(reinterpret_cast<void*>(at + row * pitch + i * element),
                                                               &value, element);
                                           return {};
                                       }});
    return CUDA_SUCCESS;
}

}  // namespace stand_in

using namespace stand_in;

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
    ENTRY(context);
    return copy(entry, device(to), host(from), {bytes, 1}, stream);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
    ENTRY(context);
    return copy(entry, host(to), device(from), {bytes, 1}, stream);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    ENTRY(context);
    return copy(entry, device(to), device(from), {bytes, 1}, stream);
}

EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* it, CUstream stream) {
    ENTRY(context);
    auto side = [](int type, const void* host, CUdeviceptr device, size_t x, size_t y, size_t pitch) -> Rows {
        bool on_device = type == CU_MEMORYTYPE_DEVICE;
        auto at = on_device ? std::uintptr_t(device) : reinterpret_cast<std::uintptr_t>(host);
        return {at + y * pitch + x, pitch, on_device};
    };
    for (int type : {it->srcMemoryType, it->dstMemoryType})
        if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE)
            return driver().refuse(CUDA_ERROR_INVALID_VALUE, "a copy of neither host nor device memory");
    return copy(entry,
                side(it->dstMemoryType, it->dstHost, it->dstDevice, it->dstXInBytes, it->dstY, it->dstPitch),
                side(it->srcMemoryType, it->srcHost, it->srcDevice, it->srcXInBytes, it->srcY, it->srcPitch),
                {it->WidthInBytes, it->Height}, stream);
}

namespace {

CUresult fill(CUdeviceptr at, unsigned value, unsigned element, size_t elements, CUstream handle) {
    CUresult fault;
    auto stream = find_stream(handle, fault);
    if (fault != CUDA_SUCCESS || elements == 0) return fault;
    Shared work;
    fault = make_fill(at, 0, value, element, elements, 1, work);
    return fault != CUDA_SUCCESS ? fault : driver().enqueue(*stream, {work, {}, {}, {}});
}

}  // namespace

EXPORT CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t elements, CUstream stream) {
    ENTRY(context);
    return fill(at, value, 1, elements, stream);
}

EXPORT CUresult cuMemsetD32Async(CUdeviceptr at, unsigned value, size_t elements, CUstream stream) {
    ENTRY(context);
    return fill(at, value, 4, elements, stream);
}
