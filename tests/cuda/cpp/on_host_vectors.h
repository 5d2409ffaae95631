// Vector types, with the alignment of a device.
#pragma once

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

#define ON_HOST_VECTORS(T, name, align2, align4)                                                   \
    struct __align__(align2) name##2 { T x, y; };                                                  \
    struct name##3 { T x, y, z; };                                                                 \
    struct __align__(align4) name##4 { T x, y, z, w; };                                            \
    __forceinline__ name##2 make_##name##2(T x, T y) { return {x, y}; }                            \
    __forceinline__ name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                    \
    __forceinline__ name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
ON_HOST_VECTORS(signed char, char, 2, 4)
ON_HOST_VECTORS(unsigned char, uchar, 2, 4)
ON_HOST_VECTORS(short, short, 4, 8)
ON_HOST_VECTORS(unsigned short, ushort, 4, 8)
ON_HOST_VECTORS(int, int, 8, 16)
ON_HOST_VECTORS(unsigned, uint, 8, 16)
ON_HOST_VECTORS(long long, longlong, 16, 16)
ON_HOST_VECTORS(unsigned long long, ulonglong, 16, 16)
ON_HOST_VECTORS(float, float, 8, 16)
ON_HOST_VECTORS(double, double, 16, 16)
#undef ON_HOST_VECTORS
