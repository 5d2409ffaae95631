// Products of column-major matrices on the host, as computed by the stand-in of cuBLASLt.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stand_in {

enum { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 };
enum { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_PEDANTIC = 69, CUBLAS_COMPUTE_32F_FAST_TF32 = 77 };
// CUBLASLT_EPILOGUE_...: flags, except DEFAULT.
enum { EPILOGUE_DEFAULT = 1, RELU = 2, BIAS = 4 };

// The contents of the opaque descriptors.
struct MatmulDesc {
    int32_t compute_type, scale_type, pointer_mode, transa, transb, transc;
    uint32_t epilogue;
    int32_t bias_type, sm_count;
    void* bias;
    int64_t bias_stride;
};

struct MatrixLayout {
    int32_t type, order;
    uint64_t rows, cols;
    int64_t ld;
    int32_t batches;
    int64_t stride;
};

inline size_t bytes_of(int type) { return type == CUDA_R_32F ? 4 : 2; }

struct Product {
    MatmulDesc desc;
    float alpha, beta;
    const void* a;
    const void* b;
    const void* c;
    void* d;
    MatrixLayout la, lb, lc, ld;
    void* workspace;
    size_t workspace_bytes;

    int64_t m() const { return int64_t(ld.rows); }
    int64_t n() const { return int64_t(ld.cols); }
    int64_t k() const { return int64_t(desc.transa ? la.rows : la.cols); }
    bool has(unsigned flag) const { return desc.epilogue != EPILOGUE_DEFAULT && (desc.epilogue & flag) != 0; }
    int bias_type() const { return desc.bias_type < 0 ? ld.type : desc.bias_type; }
};

// The distance from the first element to the last.
inline size_t span(const MatrixLayout& layout) {
    auto last = (layout.batches - 1) * layout.stride + (int64_t(layout.cols) - 1) * layout.ld + int64_t(layout.rows);
    return size_t(last) * bytes_of(layout.type);
}

// Computes one product of a batch. Sums are accumulated in fp32 in the order of k, and rounded once to D's format.
void multiply(const Product& it, int64_t batch);

}  // namespace stand_in
