// cuBLASLt: every kind of product, compared with plain loops.
#include "check.h"

#include "../../cpp/thread.h"
#include "../../cpp/on_host_formats.h"

namespace {

enum { f32 = 0, f16 = 2, bf16 = 14 };

template <typename... Args>
int lt(const char* name, Args... args) {
    return call<int>(cublaslt, name, args...);
}

float rounded(int type, float value) {
    if (type == f16) return on_host::half_to_float(on_host::float_to_half(value));
    if (type == bf16) return on_host::bfloat16_to_float(on_host::float_to_bfloat16(value));
    return value;
}

// Numbers as bytes of a format, on the device, and back.
CUdeviceptr put(int type, const std::vector<float>& values) {
    if (type == f32) return upload(values);
    std::vector<unsigned short> bits;
    for (float value : values)
        bits.push_back(type == f16 ? on_host::float_to_half(value) : on_host::float_to_bfloat16(value));
    return upload(bits);
}
std::vector<float> get(int type, CUdeviceptr at, size_t elements) {
    if (type == f32) return download<float>(at, elements);
    std::vector<float> values;
    for (unsigned short bits : download<unsigned short>(at, elements))
        values.push_back(type == f16 ? on_host::half_to_float(bits) : on_host::bfloat16_to_float(bits));
    return values;
}

std::uint64_t state = 1;
int random(int end) {
    state = state * 6364136223846793005 + 1442695040888963407;
    return int((state >> 33) % std::uint64_t(end));
}

// A column-major matrix, its columns `pad` elements further apart than they are long.
struct Matrix {
    std::uint64_t rows, cols;
    std::int64_t ld;
    std::vector<float> values;
    Matrix(std::uint64_t rows, std::uint64_t cols, int pad, int type)
        : rows(rows), cols(cols), ld(std::int64_t(rows) + pad), values(size_t(ld) * cols) {
        for (float& value : values) value = rounded(type, float(random(17) - 8) / 4);
    }
    float at(std::uint64_t row, std::uint64_t col) const { return values[col * size_t(ld) + row]; }
    float at(bool transposed, std::uint64_t row, std::uint64_t col) const {
        return transposed ? at(col, row) : at(row, col);
    }
    void* layout(int type) const {
        void* made = nullptr;
        EQUAL(lt("cublasLtMatrixLayoutCreate", &made, type, rows, cols, ld), 0);
        return made;
    }
};

struct Kind {
    int type, out;
    int transa, transb;
    float alpha, beta;
    unsigned epilogue;
    int compute = 68;
};

template <typename T>
void set(void* desc, int attribute, T value) {
    EQUAL(lt("cublasLtMatmulDescSetAttribute", desc, attribute, static_cast<const void*>(&value), sizeof(T)), 0);
}

void check(const Kind& kind) {
    auto size = [] { return std::uint64_t(1 + random(40)); };
    std::uint64_t m = size(), n = size(), k = size();
    Matrix a(kind.transa ? k : m, kind.transa ? m : k, random(3), kind.type);
    Matrix b(kind.transb ? n : k, kind.transb ? k : n, random(3), kind.type);
    Matrix d(m, n, random(3), kind.out);
    bool bias = kind.epilogue & 4, relu = kind.epilogue & 2;
    Matrix vector(m, 1, 0, kind.out);
    CUdeviceptr at_a = put(kind.type, a.values), at_b = put(kind.type, b.values), at_d = put(kind.out, d.values),
                at_vector = put(kind.out, vector.values), workspace = allocate(1 << 16);

    void *handle, *desc, *preference;
    EQUAL(lt("cublasLtCreate", &handle), 0);
    EQUAL(lt("cublasLtMatmulDescCreate", &desc, kind.compute, int(f32)), 0);
    set(desc, 3, std::int32_t(kind.transa));
    set(desc, 4, std::int32_t(kind.transb));
    set(desc, 7, std::uint32_t(kind.epilogue));
    set(desc, 8, at_vector);
    void *la = a.layout(kind.type), *lb = b.layout(kind.type), *ld = d.layout(kind.out);
    EQUAL(lt("cublasLtMatmulPreferenceCreate", &preference), 0);
    std::uint64_t room = 1 << 16;
    EQUAL(lt("cublasLtMatmulPreferenceSetAttribute", preference, 1, static_cast<const void*>(&room), sizeof(room)), 0);
    struct {
        std::uint64_t algo[8];
        size_t workspace;
        int state;
        float waves;
        int reserved[4];
    } result;
    int found = 0;
    EQUAL(lt("cublasLtMatmulAlgoGetHeuristic", handle, desc, la, lb, ld, ld, preference, 1,
             static_cast<void*>(&result), &found), 0);
    EQUAL(found, 1);
    CUstream by = stream();
    EQUAL(lt("cublasLtMatmul", handle, desc, static_cast<const void*>(&kind.alpha), at_a, la, at_b, lb,
             static_cast<const void*>(&kind.beta), at_d, ld, at_d, ld, static_cast<const void*>(result.algo), workspace,
             result.workspace, by), 0);
    synchronize(by);

    std::vector<float> got = get(kind.out, at_d, d.values.size());
    auto near = [&](float left, double right) {
        double tolerance = kind.out == f32 ? 1e-4 : kind.out == f16 ? 2e-3 : 1.6e-2;
        if (std::fabs(left - right) > tolerance * (1 + std::fabs(right)))
            fail(__FILE__, __LINE__, std::to_string(left) + " is not " + std::to_string(right));
    };
    for (std::uint64_t col = 0; col < n; ++col)
        for (std::uint64_t row = 0; row < std::uint64_t(d.ld); ++row) {
            size_t at = col * size_t(d.ld) + row;
            if (row >= m) {
                if (at < got.size()) EQUAL(got[at], d.values[at]);
                continue;
            }
            double sum = 0;
            for (std::uint64_t i = 0; i < k; ++i) sum += double(a.at(kind.transa, row, i)) * b.at(kind.transb, i, col);
            sum = kind.alpha * sum + kind.beta * d.at(row, col);
            if (bias) sum += vector.values[row];
            if (relu) sum = std::fmax(sum, 0);
            near(got[at], sum);
        }
    for (void* layout : {la, lb, ld}) EQUAL(lt("cublasLtMatrixLayoutDestroy", layout), 0);
    EQUAL(lt("cublasLtMatmulPreferenceDestroy", preference), 0);
    EQUAL(lt("cublasLtMatmulDescDestroy", desc), 0);
    EQUAL(lt("cublasLtDestroy", handle), 0);
}

}  // namespace

CASE(products_of_all_kinds) {
    begin();
    unsigned checked = 0;
    for (auto [type, out] : {std::pair{int(f32), int(f32)}, {f16, f16}, {bf16, bf16}, {f16, f32}, {bf16, f32}})
        for (int transposed = 0; transposed < 4; ++transposed)
            for (unsigned epilogue : {1, 2, 4, 6})
                for (auto [alpha, beta] : {std::pair{1.0f, 0.0f}, {1.0f, 1.0f}, {0.5f, -0.25f}}) {
                    check({type, out, transposed & 1, transposed >> 1, alpha, beta, epilogue});
                    ++checked;
                }
    EQUAL(checked, 5u * 4 * 4 * 3);
    check({f32, f32, 0, 1, 1, 0, 1, 77});
}

CASE(products_formats_round_once) {
    // Every half converts to itself; numbers between two halves are rounded to the nearest, ties to even.
    for (unsigned bits = 0; bits < 0x7c00; ++bits) {
        float low = on_host::half_to_float(static_cast<unsigned short>(bits)),
              high = on_host::half_to_float(static_cast<unsigned short>(bits + 1));
        EQUAL(on_host::float_to_half(low), bits);
        EQUAL(on_host::float_to_half(-low), bits | 0x8000);
        if (bits == 0x7bff) high = 65536;
        float middle = low + (high - low) / 2;
        EQUAL(on_host::float_to_half(middle), bits + (bits & 1));
        EQUAL(on_host::float_to_half(std::nextafterf(middle, 0)), bits);
        EQUAL(on_host::float_to_half(std::nextafterf(middle, 1e9f)), bits + 1);
    }
    CHECK(std::isnan(on_host::half_to_float(on_host::float_to_half(NAN))));
    CHECK(std::isnan(on_host::bfloat16_to_float(on_host::float_to_bfloat16(NAN))));
    EQUAL(on_host::float_to_bfloat16(1.0f), 0x3f80);
    EQUAL(on_host::float_to_bfloat16(1.00390625f), 0x3f80);
    EQUAL(on_host::float_to_bfloat16(1.01171875f), 0x3f82);
    EQUAL(on_host::float_to_bfloat16(3.4e38f), 0x7f80);
}
