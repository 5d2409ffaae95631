// The stand-in of cuBLASLt: products of column-major matrices, with bias and ReLU as epilogues.
//
// Combinations of formats that the library does not support, according to the tables of cublasLtMatmul's documentation, are
// CUBLAS_STATUS_NOT_SUPPORTED. The driver's stand-in in the same folder enqueues the work in a stream.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "api.h"
#include "beside.h"
#include "products.h"
#include "script.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// From the linked variant: 12080 is 12.8.
extern "C" const int stand_in_version;
extern "C" const bool stand_in_has_plain_products;

using cublasStatus_t = int;
enum : cublasStatus_t {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_ARCH_MISMATCH = 8,
    CUBLAS_STATUS_MAPPING_ERROR = 11,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_INTERNAL_ERROR = 14,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
    CUBLAS_STATUS_LICENSE_ERROR = 16,
};

using namespace stand_in;

namespace {

struct Preference {
    uint64_t workspace_bytes;
    uint32_t alignment[4];  // A, B, C, D
};
struct Algo {
    uint64_t magic, workspace_bytes;
    uint32_t alignment[4];
    uint64_t rest[4];
};
static_assert(sizeof(Algo) == 64, "cublasLtMatmulAlgo_t");
struct HeuristicResult {
    Algo algo;
    size_t workspace_bytes;
    cublasStatus_t state;
    float waves;
    int reserved[4];
};
constexpr uint64_t algo_magic = 0x7374616e642d696e;

struct Handle {};

std::mutex mutex;
Script script;

// The driver's side: stand_in_enqueue and stand_in_reaches of control.h.
struct Driver {
    CUresult (*enqueue)(CUstream, const char*, CUresult (*)(void*), void (*)(void*), void*) = nullptr;
    int (*reaches)(uintptr_t, size_t) = nullptr;
};

const Driver& driver() {
    static const Driver found = [] {
        Driver found;
        look_up(found.enqueue, "stand_in_enqueue");
        look_up(found.reaches, "stand_in_reaches");
        return found;
    }();
    return found;
}

cublasStatus_t enter(const char* function) {
    std::lock_guard<std::mutex> lock(mutex);
    return script.call(function);
}

// Called when the product runs.
CUresult run(void* raw) {
    const Product& it = *static_cast<const Product*>(raw);
    auto reaches = [](const void* at, size_t bytes) {
        return driver().reaches(reinterpret_cast<uintptr_t>(at), bytes) != 0;
    };
    bool there = reaches(it.a, span(it.la)) && reaches(it.b, span(it.lb)) && reaches(it.d, span(it.ld)) &&
                 (it.beta == 0 || reaches(it.c, span(it.lc))) &&
                 (it.workspace_bytes == 0 || reaches(it.workspace, it.workspace_bytes));
    if (it.has(BIAS))
        there &= reaches(it.desc.bias,
                         size_t((it.ld.batches - 1) * it.desc.bias_stride + it.m()) * bytes_of(it.bias_type()));
    if (!there) return CUDA_ERROR_ILLEGAL_ADDRESS;
    // Overwrites the workspace, so that concurrent use of it is noticed.
    if (it.workspace_bytes != 0) std::memset(it.workspace, 0xff, it.workspace_bytes);
    for (int64_t batch = 0; batch < it.ld.batches; ++batch) multiply(it, batch);
    return CUDA_SUCCESS;
}

cublasStatus_t check(const MatmulDesc& desc, const MatrixLayout& a, const MatrixLayout& b, const MatrixLayout& c,
                     const MatrixLayout& d) {
    if (desc.scale_type != CUDA_R_32F || desc.pointer_mode != 0 || desc.transc != 0 || desc.transa > 1 ||
        desc.transb > 1)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (const MatrixLayout* layout : {&a, &b, &c, &d}) {
        if (layout->rows == 0 || layout->cols == 0 || layout->ld < int64_t(layout->rows) || layout->batches < 1 ||
            layout->batches != d.batches)
            return CUBLAS_STATUS_INVALID_VALUE;
        if (layout->order != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    uint64_t m = desc.transa ? a.cols : a.rows, k = desc.transa ? a.rows : a.cols;
    uint64_t k_of_b = desc.transb ? b.cols : b.rows, n = desc.transb ? b.rows : b.cols;
    if (k != k_of_b || m != d.rows || n != d.cols || c.rows != d.rows || c.cols != d.cols)
        return CUBLAS_STATUS_INVALID_VALUE;
    bool single = a.type == CUDA_R_32F;
    if (!single && a.type != CUDA_R_16F && a.type != CUDA_R_16BF) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (b.type != a.type || c.type != d.type || (d.type != a.type && d.type != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    switch (desc.compute_type) {
        case CUBLAS_COMPUTE_32F:
        case CUBLAS_COMPUTE_32F_PEDANTIC: break;
        case CUBLAS_COMPUTE_32F_FAST_TF32:
            if (single) break;
            [[fallthrough]];
        default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (desc.epilogue == EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
    if ((desc.epilogue & ~(RELU | BIAS)) != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (stand_in_has_plain_products) return CUBLAS_STATUS_NOT_SUPPORTED;
    // A bias has D's format.
    if (desc.bias_type >= 0 && desc.bias_type != d.type) return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

// Sets a field of the length that the attribute has.
template <typename T>
cublasStatus_t set(T& field, const void* from, size_t bytes) {
    if (from == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&field, from, sizeof(T));
    return CUBLAS_STATUS_SUCCESS;
}

bool overlap(const void* x, size_t x_bytes, const void* y, size_t y_bytes) {
    auto a = reinterpret_cast<uintptr_t>(x), b = reinterpret_cast<uintptr_t>(y);
    return a < b + y_bytes && b < a + x_bytes;
}

}  // namespace

#define ENTER() \
    if (cublasStatus_t fault = enter(__func__)) return fault

EXPORT void stand_in_fail(const char* function, std::uint64_t nth, int code) {
    std::lock_guard<std::mutex> lock(mutex);
    script.fail(function, nth, code);
}

EXPORT std::uint64_t stand_in_calls(const char* function) {
    std::lock_guard<std::mutex> lock(mutex);
    return script.made(function);
}

EXPORT size_t cublasLtGetVersion() {
    // 12.8.4 is 120804; before 12, 11.11.3 was 111103.
    return size_t(stand_in_version / 1000 * 10000 + stand_in_version % 1000 / 10 * 100);
}

EXPORT const char* cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
        case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
        case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
        case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
        case CUBLAS_STATUS_MAPPING_ERROR: return "CUBLAS_STATUS_MAPPING_ERROR";
        case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
        case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
        case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
        case CUBLAS_STATUS_LICENSE_ERROR: return "CUBLAS_STATUS_LICENSE_ERROR";
    }
    return "CUBLAS_STATUS_UNKNOWN";
}

EXPORT cublasStatus_t cublasLtCreate(Handle** handle) {
    ENTER();
    if (driver().enqueue == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = new Handle;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtDestroy(Handle* handle) {
    ENTER();
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulDescCreate(MatmulDesc** desc, int compute_type, int scale_type) {
    ENTER();
    *desc = new MatmulDesc{};
    (*desc)->compute_type = compute_type;
    (*desc)->scale_type = scale_type;
    (*desc)->epilogue = EPILOGUE_DEFAULT;
    (*desc)->bias_type = -1;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(MatmulDesc* desc, int attribute, const void* from, size_t bytes) {
    ENTER();
    switch (attribute) {
        case 0: return set(desc->compute_type, from, bytes);
        case 1: return set(desc->scale_type, from, bytes);
        case 2: return set(desc->pointer_mode, from, bytes);
        case 3: return set(desc->transa, from, bytes);
        case 4: return set(desc->transb, from, bytes);
        case 5: return set(desc->transc, from, bytes);
        case 7: return set(desc->epilogue, from, bytes);
        case 8: return set(desc->bias, from, bytes);
        case 10: return set(desc->bias_stride, from, bytes);
        case 15: return set(desc->sm_count, from, bytes);
        case 26: return set(desc->bias_type, from, bytes);
        default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

EXPORT cublasStatus_t cublasLtMatmulDescDestroy(MatmulDesc* desc) {
    ENTER();
    delete desc;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(MatrixLayout** layout, int type, uint64_t rows, uint64_t cols,
                                                 int64_t ld) {
    ENTER();
    *layout = new MatrixLayout{type, 0, rows, cols, ld, 1, 0};
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(MatrixLayout* layout, int attribute, const void* from,
                                                       size_t bytes) {
    ENTER();
    switch (attribute) {
        case 0: return set(layout->type, from, bytes);
        case 1: return set(layout->order, from, bytes);
        case 2: return set(layout->rows, from, bytes);
        case 3: return set(layout->cols, from, bytes);
        case 4: return set(layout->ld, from, bytes);
        case 5: return set(layout->batches, from, bytes);
        case 6: return set(layout->stride, from, bytes);
        default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(MatrixLayout* layout) {
    ENTER();
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(Preference** preference) {
    ENTER();
    *preference = new Preference{0, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* from,
                                                           size_t bytes) {
    ENTER();
    switch (attribute) {
        case 1: return set(preference->workspace_bytes, from, bytes);
        case 5:
        case 6:
        case 7:
        case 8: return set(preference->alignment[attribute - 5], from, bytes);
        case 0:
        case 3: return CUBLAS_STATUS_SUCCESS;  // search mode and reduction schemes do not matter to the only algorithm
        default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(Preference* preference) {
    ENTER();
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}

// Returns one algorithm, which uses some of the available workspace and requires the promised alignment (of which the real
// library uses up to 16 bytes).
EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(Handle*, const MatmulDesc* desc, const MatrixLayout* a,
                                                     const MatrixLayout* b, const MatrixLayout* c,
                                                     const MatrixLayout* d, const Preference* preference,
                                                     int requested, HeuristicResult* results, int* found) {
    ENTER();
    *found = 0;
    if (requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
    if (cublasStatus_t fault = check(*desc, *a, *b, *c, *d)) return fault;
    HeuristicResult& result = results[0];
    result = {};
    result.algo.magic = algo_magic;
    result.algo.workspace_bytes = std::min<uint64_t>(preference->workspace_bytes, 64 << 10);
    for (int i = 0; i < 4; ++i) result.algo.alignment[i] = std::min(preference->alignment[i], 16u);
    result.workspace_bytes = result.algo.workspace_bytes;
    result.state = CUBLAS_STATUS_SUCCESS;
    result.waves = 1;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmul(Handle*, const MatmulDesc* desc, const void* alpha, const void* a,
                                     const MatrixLayout* la, const void* b, const MatrixLayout* lb, const void* beta,
                                     const void* c, const MatrixLayout* lc, void* d, const MatrixLayout* ld,
                                     const Algo* algo, void* workspace, size_t workspace_bytes, CUstream stream) {
    ENTER();
    if (cublasStatus_t fault = check(*desc, *la, *lb, *lc, *ld)) return fault;
    if (algo != nullptr) {
        if (algo->magic != algo_magic || workspace_bytes < algo->workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
        const void* pointers[] = {a, b, c, d};
        for (int i = 0; i < 4; ++i)
            if (reinterpret_cast<uintptr_t>(pointers[i]) % std::max(algo->alignment[i], 1u) != 0)
                return CUBLAS_STATUS_INVALID_VALUE;
    }
    auto product = std::make_unique<Product>();
    *product = {*desc, *static_cast<const float*>(alpha), *static_cast<const float*>(beta), a, b, c, d, *la, *lb, *lc,
                *ld, workspace, algo == nullptr ? 0 : algo->workspace_bytes};
    // "D can be C if their layouts are the same"; otherwise a product must not write its inputs.
    bool in_place = c == d && lc->ld == ld->ld && lc->stride == ld->stride;
    if (overlap(d, span(*ld), a, span(*la)) || overlap(d, span(*ld), b, span(*lb)) ||
        (product->beta != 0 && !in_place && overlap(d, span(*ld), c, span(*lc))))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (product->has(BIAS) && desc->bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    // Freed by the stream, even if enqueueing fails.
    CUresult enqueued = driver().enqueue(
        stream, "a product", run, [](void* raw) { delete static_cast<Product*>(raw); }, product.release());
    return enqueued == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
