// Device memory, and page-locked host memory.
//
// Addresses are taken from a range reserved once and are never reused, so that every use after free faults. An allocation
// ends (up to its alignment) at an inaccessible page; the rest of its pages is filled with a pattern that is checked when
// it is freed.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "blocks.h"

namespace stand_in {

class Arena {
public:
    struct Allocation {
        size_t bytes;
        std::uintptr_t pages, end;  // its whole pages
        bool freed;
        int owner;
    };

    // Allocates `bytes` poisoned bytes. Null if there is no room.
    void* allocate(size_t bytes, int owner) {
        if (base_ == 0 && !reserve()) return nullptr;
        size_t rounded = (bytes + alignment - 1) / alignment * alignment;
        size_t length = (rounded + page_ - 1) / page_ * page_;
        if (next_ + length + page_ > base_ + reserved) return nullptr;
        std::uintptr_t pages = next_, end = next_ + length, address = end - rounded;
        if (!(length < large ? fill(pages, length) : map_filled(pages, length))) return nullptr;
        next_ = end + page_;
        all_[address] = {bytes, pages, end, false, owner};
        return reinterpret_cast<void*>(address);
    }

    // The live allocation that starts at `address`, or null.
    const Allocation* at(std::uintptr_t address) const {
        auto found = all_.find(address);
        return found == all_.end() || found->second.freed ? nullptr : &found->second;
    }

    // Frees the live allocation at `address`. Returns whether all writes were within its bounds.
    bool free(std::uintptr_t address) {
        Allocation& freed = all_.at(address);
        bool intact = true;
        for (auto at = freed.pages; at < address; ++at) intact &= *reinterpret_cast<unsigned char*>(at) == poison;
        for (auto at = address + freed.bytes; at < freed.end; ++at)
            intact &= *reinterpret_cast<unsigned char*>(at) == poison;
        freed.freed = true;
        // The addresses stay reserved, the memory is released.
        mmap(reinterpret_cast<void*>(freed.pages), freed.end - freed.pages, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        return intact;
    }

    // Whether all these bytes lie within one live allocation.
    bool holds(std::uintptr_t address, size_t bytes) const {
        auto found = all_.upper_bound(address);
        if (found == all_.begin()) return false;
        --found;
        return !found->second.freed && address - found->first <= found->second.bytes &&
               bytes <= found->second.bytes - (address - found->first);
    }

    bool has(std::uintptr_t address) const { return address - base_ < reserved && base_ != 0; }

    // Describes an address, for messages.
    std::string describe(std::uintptr_t address) const {
        auto found = all_.upper_bound(address + page_);
        while (found != all_.begin()) {
            --found;
            const Allocation& it = found->second;
            if (address + page_ < it.pages || address >= it.end + page_) continue;
            auto offset = static_cast<long long>(address - found->first);
            return format("%#llx, byte %lld of an allocation of %zu bytes%s", static_cast<unsigned long long>(address),
                          offset, it.bytes, it.freed ? " that was freed" : "");
        }
        return format("%#llx, where nothing was ever allocated", static_cast<unsigned long long>(address));
    }

    // Live allocations, by address.
    template <typename Visit>
    void each(Visit visit) const {
        for (const auto& [address, allocation] : all_)
            if (!allocation.freed) visit(address, allocation);
    }

private:
    static constexpr size_t alignment = 256;  // of cuMemAlloc: "suitably aligned for any kind of variable"
    static constexpr size_t large = size_t(64) << 20, huge = size_t(4) << 20, piece = size_t(16) << 20;
    static constexpr size_t reserved = size_t(1) << 40;

    bool reserve() {
        page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        void* range = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (range == MAP_FAILED) return false;
        base_ = reinterpret_cast<std::uintptr_t>(range);
        next_ = base_ + page_;
        return true;
    }

    static bool fill(std::uintptr_t pages, size_t length) {
        auto* at = reinterpret_cast<void*>(pages);
        if (mprotect(at, length, PROT_READ | PROT_WRITE) != 0) return false;
        if (length >= huge) madvise(at, length, MADV_HUGEPAGE);
        std::memset(at, poison, length);
        return true;
    }

    // Poisons by copy-on-write mappings of one poisoned piece, so that allocated but unused memory, as of a caller that
    // probes the free memory, costs nothing.
    bool map_filled(std::uintptr_t pages, size_t length) {
        if (filled_ < 0) {
            filled_ = memfd_create("poison", MFD_CLOEXEC);
            std::vector<unsigned char> bytes(piece, poison);
            if (filled_ < 0 || write(filled_, bytes.data(), piece) != ssize_t(piece)) return false;
        }
        for (size_t at = 0; at < length; at += piece) {
            void* mapped = mmap(reinterpret_cast<void*>(pages + at), std::min(piece, length - at),
                                PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, filled_, 0);
            if (mapped == MAP_FAILED) return false;
        }
        return true;
    }

    int filled_ = -1;  // a file with one poisoned piece
    size_t page_ = 4096;
    std::uintptr_t base_ = 0, next_ = 0;
    std::map<std::uintptr_t, Allocation> all_;
};

}  // namespace stand_in
