// Matrix products by a warp's tensor cores: mma.m16n8k16 with 16-bit factors, with fragments as specified in the PTX ISA
// ("Matrix Fragments for mma.m16n8k16 with floating point type").
#pragma once

namespace on_host {

// The fragments supplied by the lanes of a block's warps. One per host thread, which executes one block at a time.
struct Fragments {
    unsigned left[4], right[2];
};

inline Fragments (&fragments_of_warp())[32] {
    static thread_local Fragments of_all[32][32];
    return of_all[this_thread()->number / 32];
}

template <bool is_bfloat16>
float half_of(unsigned both, unsigned upper) {
    unsigned short bits = both >> 16 * upper;
    return is_bfloat16 ? bfloat16_to_float(bits) : half_to_float(bits);
}

// Number [row, column] of the left factor, [16, 16].
template <bool is_bfloat16>
float of_left(const Fragments (&given)[32], unsigned row, unsigned column) {
    const auto& lane = given[row % 8 * 4 + column % 8 / 2];
    return half_of<is_bfloat16>(lane.left[row / 8 + column / 8 * 2], column % 2);
}

// Number [row, column] of the right factor, [16, 8].
template <bool is_bfloat16>
float of_right(const Fragments (&given)[32], unsigned row, unsigned column) {
    const auto& lane = given[column * 4 + row % 8 / 2];
    return half_of<is_bfloat16>(lane.right[row / 8], row % 2);
}

// Called by all lanes of a warp.
template <bool is_bfloat16>
void multiply_add(float (&sums)[4], const unsigned (&left)[4], const unsigned (&right)[2], ON_HOST_PLACE) {
    auto& given = fragments_of_warp();
    for (unsigned i = 0; i < 4; ++i) given[lane()].left[i] = left[i];
    for (unsigned i = 0; i < 2; ++i) given[lane()].right[i] = right[i];
    __syncwarp(0xffffffff, file, line);
    for (unsigned i = 0; i < 4; ++i) {
        unsigned row = lane() / 4 + i / 2 * 8, column = lane() % 4 * 2 + i % 2;
        for (unsigned k = 0; k < 16; ++k) {
            sums[i] += of_left<is_bfloat16>(given, row, k) * of_right<is_bfloat16>(given, k, column);
        }
    }
    // Wait before the fragments are overwritten.
    __syncwarp(0xffffffff, file, line);
}

}  // namespace on_host
