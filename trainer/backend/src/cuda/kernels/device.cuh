// Declarations shared by all kernels: entry points, number formats, matrices, and quads of columns.
//
// Shape letters are those of `crate::ops`.
#pragma once

#include "declared.cuh"

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

#ifdef KERNEL
#define KERNEL_OF_RESIDENT(name, threads, resident, Arguments) KERNEL(name, threads, Arguments)
#else
// Asks for at least `resident` threads per multiprocessor, which limits the registers of each.
#define KERNEL_OF_RESIDENT(name, threads, resident, Arguments)                                                 \
    extern "C" __global__ void __launch_bounds__(threads, (threads) < (resident) ? (resident) / (threads) : 1) \
        name(const __grid_constant__ Arguments args)
#endif

// Begins a kernel. Checks that the host uses the same size for the argument.
#define ENTRY_OF_RESIDENT(name, resident, Arguments)                                                \
    static_assert(sizeof(Arguments) == ARGUMENT_BYTES_OF_##name, #Arguments " is not the host's"); \
    KERNEL_OF_RESIDENT(name, THREADS_OF_##name, resident, Arguments)

// The same with at least 512 resident threads, at most 128 registers per thread, to hide load latency.
#define ENTRY(name, Arguments) ENTRY_OF_RESIDENT(name, 512, Arguments)

constexpr u32 WARP = 32;

// Number formats, with the host's codes.
enum Format : u32 { F32 = 0, BF16 = 1, F16 = 2 };

__device__ __forceinline__ float from_bf16(u16 bits) {
    return __uint_as_float(u32(bits) << 16);
}

// Rounds to nearest, ties to even; NaN stays NaN.
__device__ __forceinline__ u16 to_bf16(float x) {
    u32 bits = __float_as_uint(x);
    u32 rounded = bits + (0x7fffu + (bits >> 16 & 1));
    return u16((x != x ? bits | 0x00400000u : rounded) >> 16);
}

#ifdef ON_HOST
// Conversions by definition, for the host, which may lack the instruction.
__device__ inline float from_f16(u16 bits) {
    u32 sign = u32(bits & 0x8000) << 16, exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
    if (exponent == 0x1f) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * float(fraction) / 16777216.0f;
    return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
}

__device__ inline u16 to_f16(float x) {
    u32 bits = __float_as_uint(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return u16(sign | 0x7e00);
    if (__uint_as_float(size) < 1.0f / 16384.0f) {
        // Adding 0.5 aligns to multiples of 2^-24, the unit in the last place of [1/2, 1).
        return u16(sign | (__float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u));
    }
    u32 rounded = size + 0xfffu + (size >> 13 & 1);
    return u16(sign | (rounded >= 0x47800000u ? 0x7c00u : (rounded >> 13) - (112u << 10)));
}
#else
__device__ __forceinline__ float from_f16(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

__device__ __forceinline__ u16 to_f16(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#endif

// A row-major matrix. Rows are aligned to 16 bytes, except in matrices of one column, which are contiguous.
struct Matrix {
    char* data;
    // Row stride, in elements.
    u64 stride;
    u32 format;
    u32 columns;
};

__device__ __forceinline__ float load(const Matrix& m, u64 row, u32 column) {
    u64 at = row * m.stride + column;
    if (m.format == F32) return ((const float*)m.data)[at];
    u16 bits = ((const u16*)m.data)[at];
    return m.format == BF16 ? from_bf16(bits) : from_f16(bits);
}

// Rounds to the matrix's format.
__device__ __forceinline__ void store(const Matrix& m, u64 row, u32 column, float x) {
    u64 at = row * m.stride + column;
    if (m.format == F32) {
        ((float*)m.data)[at] = x;
    } else {
        ((u16*)m.data)[at] = m.format == BF16 ? to_bf16(x) : to_f16(x);
    }
}

// Columns that a thread loads at once: four of any format, or 16 bytes of 16-bit numbers.
constexpr u32 QUAD = 4;
constexpr u32 EIGHT = 8;

// Up to four consecutive columns of a row.
struct Quad {
    float x[QUAD];
};

__device__ __forceinline__ u32 quads_of(u32 columns) {
    return (columns + QUAD - 1) / QUAD;
}

// Whether the four columns from `column` on can be accessed with one vector load.
__device__ __forceinline__ bool is_whole_quad(const Matrix& m, u32 column, u32 count) {
    return count >= QUAD && m.stride % QUAD == 0 && column % QUAD == 0;
}

// Columns past the first `count` are zero.
__device__ __forceinline__ Quad load_quad(const Matrix& m, u64 row, u32 column, u32 count) {
    Quad quad = {};
    if (is_whole_quad(m, column, count)) {
        u64 at = row * m.stride + column;
        if (m.format == F32) {
            float4 four = *(const float4*)((const float*)m.data + at);
            quad = {four.x, four.y, four.z, four.w};
        } else {
            uint2 four = *(const uint2*)((const u16*)m.data + at);
            u16 bits[QUAD] = {u16(four.x), u16(four.x >> 16), u16(four.y), u16(four.y >> 16)};
#pragma unroll
            for (u32 i = 0; i < QUAD; i++) quad.x[i] = m.format == BF16 ? from_bf16(bits[i]) : from_f16(bits[i]);
        }
    } else {
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) {
            if (i < count) quad.x[i] = load(m, row, column + i);
        }
    }
    return quad;
}

__device__ __forceinline__ void store_quad(const Matrix& m, u64 row, u32 column, u32 count, const Quad& quad) {
    if (is_whole_quad(m, column, count)) {
        u64 at = row * m.stride + column;
        if (m.format == F32) {
            *(float4*)((float*)m.data + at) = make_float4(quad.x[0], quad.x[1], quad.x[2], quad.x[3]);
        } else {
            u16 bits[QUAD];
#pragma unroll
            for (u32 i = 0; i < QUAD; i++) bits[i] = m.format == BF16 ? to_bf16(quad.x[i]) : to_f16(quad.x[i]);
            *(uint2*)((u16*)m.data + at) = make_uint2(bits[0] | u32(bits[1]) << 16, bits[2] | u32(bits[3]) << 16);
        }
    } else {
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) {
            if (i < count) store(m, row, column + i, quad.x[i]);
        }
    }
}

// The quad of a thread, in a grid whose threads cover the quads of a matrix row by row.
struct Place {
    u32 row, column, count;
    bool is_within;
};

__device__ __forceinline__ Place place_of_thread(u32 rows, u32 columns) {
    u32 quads = quads_of(columns), number = blockIdx.x * blockDim.x + threadIdx.x;
    Place place;
    place.row = number / quads;
    place.column = number % quads * QUAD;
    place.count = min(columns - place.column, QUAD);
    place.is_within = place.row < rows;
    return place;
}

// Applies `change` to each element of a quad, in place.
template <typename F>
__device__ __forceinline__ void change_quad(const Matrix& m, const Place& at, F change) {
    Quad quad = load_quad(m, at.row, at.column, at.count);
#pragma unroll
    for (u32 i = 0; i < QUAD; i++) quad.x[i] = change(i, quad.x[i]);
    store_quad(m, at.row, at.column, at.count, quad);
}
