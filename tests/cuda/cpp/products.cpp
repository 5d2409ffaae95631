#include "products.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "on_host_formats.h"

namespace stand_in {
namespace {

float load(int type, const void* from, int64_t at) {
    if (type == CUDA_R_32F) return static_cast<const float*>(from)[at];
    unsigned short bits = static_cast<const unsigned short*>(from)[at];
    return type == CUDA_R_16F ? on_host::half_to_float(bits) : on_host::bfloat16_to_float(bits);
}

void store(int type, void* to, int64_t at, float value) {
    if (type == CUDA_R_32F) static_cast<float*>(to)[at] = value;
    else if (type == CUDA_R_16F) static_cast<unsigned short*>(to)[at] = on_host::float_to_half(value);
    else static_cast<unsigned short*>(to)[at] = on_host::float_to_bfloat16(value);
}

// TF32 has the exponent of fp32 and 10 fraction bits. Rounds to nearest, ties away from zero (cvt.rna).
float to_tf32(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if ((bits & 0x7f800000) != 0x7f800000) bits = (bits + 0x1000) & ~0x1fffu;
    std::memcpy(&value, &bits, 4);
    return value;
}

// A matrix with its operation applied, in fp32, column-major without padding.
std::vector<float> unpacked(const void* from, const MatrixLayout& layout, int64_t offset, bool transposed, bool tf32) {
    int64_t rows = int64_t(layout.rows), cols = int64_t(layout.cols);
    std::vector<float> to(size_t(rows * cols));
    for (int64_t col = 0; col < cols; ++col)
        for (int64_t row = 0; row < rows; ++row) {
            float value = load(layout.type, from, offset + col * layout.ld + row);
            to[size_t(transposed ? row * cols + col : col * rows + row)] = tf32 ? to_tf32(value) : value;
        }
    return to;
}

}  // namespace

void multiply(const Product& it, int64_t batch) {
    int64_t m = it.m(), n = it.n(), k = it.k();
    bool tf32 = it.desc.compute_type == CUBLAS_COMPUTE_32F_FAST_TF32;
    std::vector<float> a = unpacked(it.a, it.la, batch * it.la.stride, it.desc.transa, tf32);
    std::vector<float> b = unpacked(it.b, it.lb, batch * it.lb.stride, it.desc.transb, tf32);
    std::vector<float> sums(static_cast<size_t>(m));
    auto* bias =
        static_cast<unsigned char*>(it.desc.bias) + size_t(batch * it.desc.bias_stride) * bytes_of(it.bias_type());
    for (int64_t col = 0; col < n; ++col) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (int64_t i = 0; i < k; ++i) {
            const float* column = &a[size_t(i * m)];
            float factor = b[size_t(col * k + i)];
            for (int64_t row = 0; row < m; ++row) sums[size_t(row)] += column[row] * factor;
        }
        for (int64_t row = 0; row < m; ++row) {
            float value = it.alpha * sums[size_t(row)];
            // C is not read if beta is 0.
            if (it.beta != 0) value += it.beta * load(it.lc.type, it.c, batch * it.lc.stride + col * it.lc.ld + row);
            if (it.has(BIAS)) value += load(it.bias_type(), bias, row);
            if (it.has(RELU)) value = value > 0 || value != value ? value : 0;
            store(it.ld.type, it.d, batch * it.ld.stride + col * it.ld.ld + row, value);
        }
    }
}

}  // namespace stand_in
