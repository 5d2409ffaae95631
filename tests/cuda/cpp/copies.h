// Copies and fills as work items, for streams and graphs.
#pragma once

#include "driver.h"

namespace stand_in {

// Rows of bytes, `pitch` bytes apart.
struct Rows {
    std::uintptr_t at;
    size_t pitch;
    bool on_device;
};

struct Area {
    size_t width, height;
    bool is_empty() const { return width == 0 || height == 0; }
    size_t span(const Rows& rows) const { return (height - 1) * rows.pitch + width; }
};

enum Locked { pageable, page_locked, partly };

// How a range of host memory is allocated.
Locked locked(std::uintptr_t address, size_t bytes);

// Checks the memory ranges and returns work that copies when it runs. Host memory must be page-locked by
// then.
CUresult make_copy(Rows to, Rows from, Area area, Shared& work);
// `elements` of 1, 2 or 4 bytes in each of `rows`.
CUresult make_fill(CUdeviceptr at, size_t pitch, unsigned value, unsigned element, size_t elements, size_t rows,
                   Shared& work);

// The stream behind a handle, or the error if there is none.
std::shared_ptr<Stream> find_stream(CUstream handle, CUresult& fault);

}  // namespace stand_in
