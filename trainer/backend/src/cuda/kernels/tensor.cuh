// Products of small matrices on the tensor cores of one warp.
//
// One instruction multiplies `[16, 16] . [16, 8]` and accumulates into `[16, 8]`. Factors have 16 bits, sums are
// fp32. Thread `l` of the warp is lane `l % 4` of group `l / 4`. It holds these fragments (PTX ISA, "Matrix
// Fragments for mma.m16n8k16"):
//
//     left    two consecutive columns each of row `group`, of row `group + 8`, and of both again: columns
//             `2 lane, 2 lane + 1`, and then `2 lane + 8, 2 lane + 9`
//     right   two rows of column `group` each, matching the columns of `left`
//     sums    columns `2 lane, 2 lane + 1` of row `group`, and of row `group + 8`
//
// The columns of `left` may be permuted, as long as the rows of `right` are permuted the same way.
#pragma once

#include "device.cuh"

constexpr u32 GROUPS = 8;
constexpr u32 GROUP_LANES = 4;

// sums += left . right, with factors in FORMAT.
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

// Packs two 16-bit numbers, the first in the low half.
__device__ __forceinline__ u32 both(u16 first, u16 second) {
    return first | u32(second) << 16;
}

// Packs the low halves of two words, or their high halves.
__device__ __forceinline__ u32 halves(u32 first, u32 second, bool is_upper) {
    return __byte_perm(first, second, is_upper ? 0x7632 : 0x5410);
}
