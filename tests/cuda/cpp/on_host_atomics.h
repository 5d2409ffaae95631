// Atomic operations, and loads and stores with cache hints. Host threads may execute blocks of different streams
// concurrently, so the operations are truly atomic.
#pragma once

namespace on_host {

// Replaces the value at `address` by `next` of it. Returns the old value.
template <typename T, typename Next>
T replace(T* address, Next next) {
    T held;
    __atomic_load(address, &held, __ATOMIC_RELAXED);
    for (;;) {
        T wanted = next(held);
        if (__atomic_compare_exchange(address, &held, &wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return held;
    }
}

}  // namespace on_host

#define ON_HOST_INTEGERS(DEFINE) DEFINE(int) DEFINE(unsigned) DEFINE(unsigned long long)

#define ON_HOST_DEFINE(T)                                                                                           \
    inline T atomicAdd(T* address, T value) { return __atomic_fetch_add(address, value, __ATOMIC_RELAXED); }        \
    inline T atomicOr(T* address, T value) { return __atomic_fetch_or(address, value, __ATOMIC_RELAXED); }          \
    inline T atomicAnd(T* address, T value) { return __atomic_fetch_and(address, value, __ATOMIC_RELAXED); }        \
    inline T atomicXor(T* address, T value) { return __atomic_fetch_xor(address, value, __ATOMIC_RELAXED); }        \
    inline T atomicExch(T* address, T value) { return __atomic_exchange_n(address, value, __ATOMIC_RELAXED); }      \
    inline T atomicMin(T* address, T value) {                                                                       \
        return on_host::replace(address, [value](T held) { return held < value ? held : value; });                  \
    }                                                                                                               \
    inline T atomicMax(T* address, T value) {                                                                       \
        return on_host::replace(address, [value](T held) { return held > value ? held : value; });                  \
    }                                                                                                               \
    inline T atomicCAS(T* address, T expected, T value) {                                                           \
        __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);          \
        return expected;                                                                                            \
    }
ON_HOST_INTEGERS(ON_HOST_DEFINE)
#undef ON_HOST_DEFINE

inline int atomicSub(int* address, int value) { return atomicAdd(address, -value); }
inline unsigned atomicSub(unsigned* address, unsigned value) { return atomicAdd(address, 0u - value); }
inline unsigned atomicInc(unsigned* address, unsigned most) {
    return on_host::replace(address, [most](unsigned held) { return held >= most ? 0 : held + 1; });
}
inline float atomicAdd(float* address, float value) {
    return on_host::replace(address, [value](float held) { return held + value; });
}
inline double atomicAdd(double* address, double value) {
    return on_host::replace(address, [value](double held) { return held + value; });
}
inline float atomicExch(float* address, float value) {
    return on_host::replace(address, [value](float) { return value; });
}

template <typename T>
__forceinline__ T __ldg(const T* from) { return *from; }
template <typename T>
__forceinline__ T __ldca(const T* from) { return *from; }
template <typename T>
__forceinline__ T __ldcg(const T* from) { return *from; }
template <typename T>
__forceinline__ T __ldcs(const T* from) { return *from; }
template <typename T>
__forceinline__ T __ldlu(const T* from) { return *from; }
template <typename T>
__forceinline__ T __ldcv(const T* from) { return *const_cast<const volatile T*>(from); }
template <typename T>
__forceinline__ void __stwb(T* to, T value) { *to = value; }
template <typename T>
__forceinline__ void __stcg(T* to, T value) { *to = value; }
template <typename T>
__forceinline__ void __stcs(T* to, T value) { *to = value; }
template <typename T>
__forceinline__ void __stwt(T* to, T value) { *to = value; }
