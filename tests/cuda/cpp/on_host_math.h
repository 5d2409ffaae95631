// Arithmetic that CUDA C++ provides as functions without a header. The C library's functions replace the device's: they
// agree within an ulp or two, and are exact where a device's function is an approximation.
#pragma once

extern "C" {
#define ON_HOST_C(name) \
    float name##f(float) noexcept; \
    double name(double) noexcept;
ON_HOST_C(sqrt) ON_HOST_C(cbrt) ON_HOST_C(exp) ON_HOST_C(exp2) ON_HOST_C(expm1) ON_HOST_C(log) ON_HOST_C(log2)
ON_HOST_C(log10) ON_HOST_C(log1p) ON_HOST_C(sin) ON_HOST_C(cos) ON_HOST_C(tan) ON_HOST_C(asin) ON_HOST_C(acos)
ON_HOST_C(atan) ON_HOST_C(sinh) ON_HOST_C(cosh) ON_HOST_C(tanh) ON_HOST_C(erf) ON_HOST_C(erfc) ON_HOST_C(fabs)
ON_HOST_C(floor) ON_HOST_C(ceil) ON_HOST_C(trunc) ON_HOST_C(rint) ON_HOST_C(nearbyint) ON_HOST_C(round)
#undef ON_HOST_C
#define ON_HOST_C(name) \
    float name##f(float, float) noexcept; \
    double name(double, double) noexcept;
ON_HOST_C(pow) ON_HOST_C(fmin) ON_HOST_C(fmax) ON_HOST_C(fmod) ON_HOST_C(copysign) ON_HOST_C(atan2) ON_HOST_C(hypot)
ON_HOST_C(nextafter)
#undef ON_HOST_C
float fmaf(float, float, float) noexcept;
double fma(double, double, double) noexcept;
float ldexpf(float, int) noexcept;
double ldexp(double, int) noexcept;
float frexpf(float, int*) noexcept;
int abs(int) noexcept;
long long llabs(long long) noexcept;
void* memcpy(void*, const void*, size_t) noexcept;
void* memset(void*, int, size_t) noexcept;
int printf(const char*, ...);
}

#define ON_HOST_OVERLOAD(name) __forceinline__ float name(float x) { return name##f(x); }
ON_HOST_OVERLOAD(sqrt) ON_HOST_OVERLOAD(exp) ON_HOST_OVERLOAD(log) ON_HOST_OVERLOAD(fabs) ON_HOST_OVERLOAD(floor)
ON_HOST_OVERLOAD(ceil) ON_HOST_OVERLOAD(sin) ON_HOST_OVERLOAD(cos) ON_HOST_OVERLOAD(tanh) ON_HOST_OVERLOAD(rint)
#undef ON_HOST_OVERLOAD

__forceinline__ float rsqrtf(float x) { return 1.0f / sqrtf(x); }
__forceinline__ double rsqrt(double x) { return 1.0 / sqrt(x); }
__forceinline__ float exp10f(float x) { return powf(10.0f, x); }
__forceinline__ float fdividef(float x, float y) { return x / y; }
__forceinline__ float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

__forceinline__ bool isnan(float x) { return __builtin_isnan(x); }
__forceinline__ bool isnan(double x) { return __builtin_isnan(x); }
__forceinline__ bool isinf(float x) { return __builtin_isinf(x); }
__forceinline__ bool isinf(double x) { return __builtin_isinf(x); }
__forceinline__ bool isfinite(float x) { return __builtin_isfinite(x); }
__forceinline__ bool isfinite(double x) { return __builtin_isfinite(x); }
__forceinline__ bool signbit(float x) { return __builtin_signbit(x); }

#define ON_HOST_ORDER(T)                                       \
    __forceinline__ T min(T x, T y) { return y < x ? y : x; }  \
    __forceinline__ T max(T x, T y) { return y > x ? y : x; }
ON_HOST_ORDER(int) ON_HOST_ORDER(unsigned) ON_HOST_ORDER(long) ON_HOST_ORDER(unsigned long) ON_HOST_ORDER(long long)
ON_HOST_ORDER(unsigned long long)
#undef ON_HOST_ORDER
// As on a device, of a number and NaN the number is returned.
__forceinline__ float min(float x, float y) { return fminf(x, y); }
__forceinline__ float max(float x, float y) { return fmaxf(x, y); }
__forceinline__ double min(double x, double y) { return fmin(x, y); }
__forceinline__ double max(double x, double y) { return fmax(x, y); }
__forceinline__ float abs(float x) { return fabsf(x); }

// Rounded to nearest and never contracted, like every operation here with -ffp-contract=off.
__forceinline__ float __fadd_rn(float x, float y) { return x + y; }
__forceinline__ float __fsub_rn(float x, float y) { return x - y; }
__forceinline__ float __fmul_rn(float x, float y) { return x * y; }
__forceinline__ float __fdiv_rn(float x, float y) { return x / y; }
__forceinline__ float __frcp_rn(float x) { return 1.0f / x; }
__forceinline__ float __fsqrt_rn(float x) { return sqrtf(x); }
__forceinline__ float __frsqrt_rn(float x) { return float(1.0 / sqrt(double(x))); }
__forceinline__ float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
__forceinline__ double __dadd_rn(double x, double y) { return x + y; }
__forceinline__ double __dmul_rn(double x, double y) { return x * y; }
__forceinline__ double __ddiv_rn(double x, double y) { return x / y; }
__forceinline__ double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

__forceinline__ float __fdividef(float x, float y) { return x / y; }
__forceinline__ float __expf(float x) { return expf(x); }
__forceinline__ float __exp10f(float x) { return exp10f(x); }
__forceinline__ float __logf(float x) { return logf(x); }
__forceinline__ float __log2f(float x) { return log2f(x); }
__forceinline__ float __log10f(float x) { return log10f(x); }
__forceinline__ float __powf(float x, float y) { return powf(x, y); }
__forceinline__ float __sinf(float x) { return sinf(x); }
__forceinline__ float __cosf(float x) { return cosf(x); }
__forceinline__ float __tanhf(float x) { return tanhf(x); }
inline void sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
inline void __sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }

__forceinline__ int __popc(unsigned x) { return __builtin_popcount(x); }
__forceinline__ int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
__forceinline__ int __clz(int x) { return x == 0 ? 32 : __builtin_clz(x); }
__forceinline__ int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(x); }
__forceinline__ int __ffs(int x) { return __builtin_ffs(x); }
__forceinline__ int __ffsll(long long x) { return __builtin_ffsll(x); }
// Every four bits of `selector` select one of the eight bytes; with their highest bit, only its sign.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long both = (unsigned long long)(y) << 32 | x;
    unsigned chosen = 0;
    for (unsigned i = 0; i < 4; ++i) {
        unsigned select = selector >> 4 * i, byte = unsigned(both >> 8 * (select & 7)) & 0xff;
        if (select & 8) byte = byte & 0x80 ? 0xff : 0;
        chosen |= byte << 8 * i;
    }
    return chosen;
}
inline unsigned __brev(unsigned x) {
    x = x >> 1 & 0x55555555u | (x & 0x55555555u) << 1;
    x = x >> 2 & 0x33333333u | (x & 0x33333333u) << 2;
    x = x >> 4 & 0x0f0f0f0fu | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
inline unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)(__brev(unsigned(x))) << 32 | __brev(unsigned(x >> 32));
}
__forceinline__ unsigned __umulhi(unsigned x, unsigned y) { return unsigned((unsigned long long)(x)*y >> 32); }
__forceinline__ int __mulhi(int x, int y) { return int((long long)(x)*y >> 32); }
__forceinline__ unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)(x)*y >> 64);
}
__forceinline__ unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return unsigned(((unsigned long long)(high) << 32 | low) << (by & 31) >> 32);
}
__forceinline__ unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return unsigned(((unsigned long long)(high) << 32 | low) >> (by & 31));
}

__forceinline__ unsigned __float_as_uint(float x) { return on_host::bits<unsigned>(x); }
__forceinline__ int __float_as_int(float x) { return on_host::bits<int>(x); }
__forceinline__ float __uint_as_float(unsigned x) { return on_host::bits<float>(x); }
__forceinline__ float __int_as_float(int x) { return on_host::bits<float>(x); }
__forceinline__ long long __double_as_longlong(double x) { return on_host::bits<long long>(x); }
__forceinline__ double __longlong_as_double(long long x) { return on_host::bits<double>(x); }

// Conversions to integers saturate, and NaN becomes 0, as on a device.
namespace on_host {
template <typename T, typename F>
inline T saturate(F rounded) {
    constexpr bool is_signed = T(-1) < T(0);
    constexpr T most = is_signed ? T(~(T(1) << (sizeof(T) * 8 - 1))) : T(-1);
    constexpr T least = is_signed ? T(-most - 1) : T(0);
    if (__builtin_isnan(rounded)) return 0;
    if (rounded <= F(least)) return least;
    return rounded >= F(most) ? most : T(rounded);
}
}  // namespace on_host
__forceinline__ int __float2int_rn(float x) { return on_host::saturate<int>(rintf(x)); }
__forceinline__ int __float2int_rz(float x) { return on_host::saturate<int>(truncf(x)); }
__forceinline__ int __float2int_rd(float x) { return on_host::saturate<int>(floorf(x)); }
__forceinline__ int __float2int_ru(float x) { return on_host::saturate<int>(ceilf(x)); }
__forceinline__ unsigned __float2uint_rn(float x) { return on_host::saturate<unsigned>(rintf(x)); }
__forceinline__ unsigned __float2uint_rz(float x) { return on_host::saturate<unsigned>(truncf(x)); }
__forceinline__ long long __float2ll_rn(float x) { return on_host::saturate<long long>(rintf(x)); }
__forceinline__ float __int2float_rn(int x) { return float(x); }
__forceinline__ float __uint2float_rn(unsigned x) { return float(x); }
__forceinline__ float __ll2float_rn(long long x) { return float(x); }
__forceinline__ float __ull2float_rn(unsigned long long x) { return float(x); }
__forceinline__ float __double2float_rn(double x) { return float(x); }
