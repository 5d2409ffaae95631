// Asynchronous copies from global to shared memory.
//
// Destinations are written when their thread waits for their group, as late as a device may write them. Until then they hold no
// numbers.
#pragma once

namespace on_host {

inline void begin_copy(void* to, const void* from, unsigned bytes, ON_HOST_PLACE) {
    asm volatile("" ::: "memory");
    this_thread()->block->calls->begin_copy(to, from, bytes, {file, line});
}

inline void end_group() { this_thread()->block->calls->end_group(); }

inline void wait_for_groups(unsigned latest) {
    this_thread()->block->calls->wait_for_groups(latest);
    asm volatile("" ::: "memory");
}

}  // namespace on_host
