// Products of small matrices by a warp's tensor cores.
//
// One instruction multiplies `[16, 16] . [16, 8]` and adds to `[16, 8]`; numbers of both factors have 16 bits, sums have
// single precision. Lane `l` is lane `l % 4` of its group `l / 4`, and holds of each matrix (PTX ISA, "Matrix Fragments
// for mma.m16n8k16"):
//
//     left    two neighbouring columns each of row `group`, of row `group + 8`, and of both again: columns
//             `2 lane, 2 lane + 1`, and then `2 lane + 8, 2 lane + 9`
//     right   two rows of column `group` each: those that are columns of `left` there
//     sums    columns `2 lane, 2 lane + 1` of row `group`, and of row `group + 8`
//
// Sums over columns of `left` may be taken in any order, as long as `right` has its rows in the same one.
#pragma once

#include "device.cuh"

constexpr u32 GROUPS = 8;
constexpr u32 GROUP_LANES = 4;

// sums += left . right, of numbers in the format.
template <Format FORMAT>
__device__ __forceinline__ void multiply_add(float (&sums)[4], const u32 (&left)[4], const u32 (&right)[2]) {
#ifdef ON_HOST
    on_host::multiply_add<FORMAT == BF16>(sums, left, right);
#else
    if (FORMAT == BF16) {
        asm(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
    } else {
        asm(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
    }
#endif
}

template <Format FORMAT>
__device__ __forceinline__ u16 to_bits(float x) {
    return FORMAT == BF16 ? to_bf16(x) : to_f16(x);
}

template <Format FORMAT>
__device__ __forceinline__ float from_bits(u16 bits) {
    return FORMAT == BF16 ? from_bf16(bits) : from_f16(bits);
}

// Two numbers of 16 bits, the first one below.
__device__ __forceinline__ u32 both(u16 first, u16 second) {
    return first | u32(second) << 16;
}

// The lower halves of two pairs, or the upper ones.
__device__ __forceinline__ u32 halves(u32 first, u32 second, bool is_upper) {
    return __byte_perm(first, second, is_upper ? 0x7632 : 0x5410);
}
