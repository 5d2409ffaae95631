// The 16-bit formats as bit patterns, converted as `cvt` does on a device: to nearest, ties to even; NaN is preserved.
#pragma once

namespace on_host {

inline float half_to_float(unsigned short half) {
    unsigned sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ffu;
    unsigned single;
    if (exponent == 31) {
        single = sign | 0x7f800000u | fraction << 13;
    } else if (exponent != 0) {
        single = sign | (exponent + 112) << 23 | fraction << 13;
    } else {
        // Zero and subnormal numbers: fraction * 2^-24, exact in fp32.
        float value = float(fraction) * 0x1p-24f;
        __builtin_memcpy(&single, &value, 4);
        single |= sign;
    }
    float value;
    __builtin_memcpy(&value, &single, 4);
    return value;
}

inline unsigned short float_to_half(float value) {
    unsigned single;
    __builtin_memcpy(&single, &value, 4);
    unsigned sign = single >> 16 & 0x8000u, magnitude = single & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;             // NaN, as cvt.rn.f16.f32 makes it
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u;    // from 65520 on
    if (magnitude < 0x38800000u) {                          // below 2^-14: multiples of 2^-24
        float small, step = 0x1p-1f;                        // 2^-1 has a last place of 2^-24
        __builtin_memcpy(&small, &magnitude, 4);
        float sum = small + step;
        unsigned bits;
        __builtin_memcpy(&bits, &sum, 4);
        return sign | (bits - 0x3f000000u);
    }
    unsigned odd = magnitude >> 13 & 1;
    return sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13);
}

inline float bfloat16_to_float(unsigned short bfloat16) {
    unsigned single = unsigned(bfloat16) << 16;
    float value;
    __builtin_memcpy(&value, &single, 4);
    return value;
}

inline unsigned short float_to_bfloat16(float value) {
    unsigned single;
    __builtin_memcpy(&single, &value, 4);
    if ((single & 0x7fffffffu) > 0x7f800000u) return 0x7fff;  // NaN, as cvt.rn.bf16.f32 makes it
    return (single + 0x7fffu + (single >> 16 & 1)) >> 16;
}

}  // namespace on_host
