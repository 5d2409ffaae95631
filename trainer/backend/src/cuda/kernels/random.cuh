// Counter-based random numbers, and stochastic rounding.
#pragma once

#include "device.cuh"

// Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011, section 3.3.
__device__ __forceinline__ uint4 philox(u64 key, uint4 counter) {
    u32 k0 = u32(key), k1 = u32(key >> 32);
    uint4 c = counter;
#pragma unroll
    for (u32 round = 0; round < 10; round++) {
        u32 high0 = __umulhi(0xd2511f53u, c.x), low0 = 0xd2511f53u * c.x;
        u32 high1 = __umulhi(0xcd9e8d57u, c.z), low1 = 0xcd9e8d57u * c.z;
        c = make_uint4(high1 ^ c.y ^ k0, low1, high0 ^ c.w ^ k1, low0);
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return c;
}

// Rounds `x` stochastically to one of the two nearest numbers of a 16-bit format, chosen by `word`: see
// `Float::round_drawn`.
__device__ __forceinline__ u16 drawn(u32 format, float x, u32 word) {
    u32 bits = __float_as_uint(x), size = bits & 0x7fffffffu, units, rest, largest;
    if (size >= 0x7f800000u) return format == BF16 ? to_bf16(x) : to_f16(x);
    if (format == BF16) {
        units = size >> 16, rest = size << 16, largest = 0x7f7fu;
    } else {
        units = (size >> 13) - (112u << 10), rest = size << 19, largest = 0x7bffu;
        if (size < 0x38800000u) {
            // Below 2^-14: fixed point in units of 2^-24, with as many fraction bits as a word has.
            u64 fixed = u64((size & 0x7fffffu) | 0x800000u) << 32 >> min(126 - (size >> 23), 63u);
            units = u32(fixed >> 32), rest = u32(fixed);
        }
    }
    return u16(bits >> 16 & 0x8000u | min(units + (word > ~rest), largest));
}

// Stores a quad to a row of a table in any format; 16-bit formats are rounded stochastically with `key`. See
// `Backend::step_rows`.
__device__ __forceinline__ void store_drawn(const Matrix& m, u32 row, u32 column, u32 count, const Quad& quad, u64 key) {
    if (m.format == F32) {
        store_quad(m, row, column, count, quad);
        return;
    }
    uint4 words = philox(key, make_uint4(row, column / QUAD, 0, 0));
    u16 bits[QUAD] = {drawn(m.format, quad.x[0], words.x), drawn(m.format, quad.x[1], words.y),
                      drawn(m.format, quad.x[2], words.z), drawn(m.format, quad.x[3], words.w)};
    u16* to = (u16*)m.data + (row * m.stride + column);
    if (is_whole_quad(m, column, count)) {
        *(uint2*)to = make_uint2(bits[0] | u32(bits[1]) << 16, bits[2] | u32(bits[3]) << 16);
    } else {
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) {
            if (i < count) to[i] = bits[i];
        }
    }
}
