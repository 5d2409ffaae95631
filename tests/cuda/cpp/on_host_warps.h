// Barriers, and exchanges between the lanes of a warp.
//
// Each passes on its call site: all threads of a block must reach the same __syncthreads ("conditional only if the
// condition is the same across the block", CUDA C++ Programming Guide), and all lanes of a mask must reach the same kind of
// exchange with the same mask.
#pragma once

#define ON_HOST_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace on_host {

inline int barrier(Barrier kind, int predicate, Place place) {
    // Writes before the barrier are visible after it, also in the block's shared memory.
    asm volatile("" ::: "memory");
    int result = this_thread()->block->calls->barrier(kind, predicate, place);
    asm volatile("" ::: "memory");
    return result;
}

inline u64 exchange(Exchange kind, unsigned mask, u64 value, unsigned source, Place place) {
    asm volatile("" ::: "memory");
    u64 result = this_thread()->block->calls->exchange(kind, mask, value, source, place);
    asm volatile("" ::: "memory");
    return result;
}

template <typename T>
T shuffle_from(unsigned mask, T value, unsigned source, Place place) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "lanes exchange 4 or 8 bytes");
    u64 given = 0;
    __builtin_memcpy(&given, &value, sizeof(T));
    u64 taken = exchange(shuffle, mask, given, source, place);
    __builtin_memcpy(&value, &taken, sizeof(T));
    return value;
}

__forceinline__ unsigned lane() { return this_thread()->number % 32; }

}  // namespace on_host

inline void __syncthreads(ON_HOST_PLACE) { on_host::barrier(on_host::plain_barrier, 0, {file, line}); }
inline int __syncthreads_or(int predicate, ON_HOST_PLACE) {
    return on_host::barrier(on_host::or_barrier, predicate, {file, line});
}
inline int __syncthreads_and(int predicate, ON_HOST_PLACE) {
    return on_host::barrier(on_host::and_barrier, predicate, {file, line});
}
inline int __syncthreads_count(int predicate, ON_HOST_PLACE) {
    return on_host::barrier(on_host::count_barrier, predicate, {file, line});
}
inline void __syncwarp(unsigned mask = 0xffffffff, ON_HOST_PLACE) {
    on_host::exchange(on_host::sync_warp, mask, 0, 0, {file, line});
}

// The warp is divided into segments of `width` lanes; a lane that reads outside its segment gets its own value.
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, ON_HOST_PLACE) {
    unsigned part = on_host::lane() & ~(width - 1u);
    return on_host::shuffle_from(mask, value, part + (source & (width - 1)), {file, line});
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, ON_HOST_PLACE) {
    unsigned lane = on_host::lane(), within = lane & (width - 1u);
    return on_host::shuffle_from(mask, value, within < by ? lane : lane - by, {file, line});
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, ON_HOST_PLACE) {
    unsigned lane = on_host::lane(), within = lane & (width - 1u);
    return on_host::shuffle_from(mask, value, within + by < unsigned(width) ? lane + by : lane, {file, line});
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32, ON_HOST_PLACE) {
    unsigned lane = on_host::lane(), part = lane & ~(width - 1u), source = lane ^ with;
    // Lanes of earlier segments may be read, those of later ones may not.
    return on_host::shuffle_from(mask, value, source < part + width ? source : lane, {file, line});
}

inline unsigned __ballot_sync(unsigned mask, int predicate, ON_HOST_PLACE) {
    return unsigned(on_host::exchange(on_host::ballot, mask, predicate != 0, 0, {file, line}));
}
inline int __any_sync(unsigned mask, int predicate, ON_HOST_PLACE) {
    return __ballot_sync(mask, predicate, file, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, ON_HOST_PLACE) {
    return __ballot_sync(mask, predicate, file, line) == mask;
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value, ON_HOST_PLACE) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "lanes exchange 4 or 8 bytes");
    on_host::u64 given = 0;
    __builtin_memcpy(&given, &value, sizeof(T));
    return unsigned(on_host::exchange(on_host::match, mask, given, 0, {file, line}));
}
// Lanes run one after another, so only this lane is known to be active. A kernel may not rely on more.
inline unsigned __activemask() { return 1u << on_host::lane(); }

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __nanosleep(unsigned) {}
