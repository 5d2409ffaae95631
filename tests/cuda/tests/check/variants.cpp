// Incomplete stand-ins; each case requires a variant.
#include "check.h"

CASE(variants_without_a_function) {
    CHECK(find(cuda, "cuGraphAddMemcpyNode") == nullptr);
    CHECK(find(cuda, "cuGraphAddMemsetNode") != nullptr);
    CHECK(find(nvrtc, "nvrtcGetCUBIN") == nullptr);
    CHECK(find(cublaslt, "cublasLtMatmul") != nullptr);
}

CASE(variants_of_older_versions) {
    int version = 0, minor = 0;
    OK(cu("cuDriverGetVersion", &version));
    EQUAL(version, 11080);
    OK(call(nvrtc, "nvrtcVersion", &version, &minor));
    EQUAL(version * 10 + minor, 12 * 10 + 4);
    EQUAL(call<size_t>(cublaslt, "cublasLtGetVersion"), 110000u);
}

// Takes the folder of a copy: its libraries are independent of those in the first folder.
CASE(variants_of_copies_are_apart) {
    begin();
    allocate(100);
    EQUAL(count("bytes"), 100u);
    look_into_copy();
    EQUAL(count("bytes"), 0u);
    begin();
    CUdeviceptr to = allocate(4000);
    struct {
        CUdeviceptr to;
        unsigned long long count;
        unsigned value;
    } args{to, 1000, 7};
    CUstream by = stream();
    OK(launch(kernel("fill"), 4, 256, by, args));
    synchronize(by);
    EQUAL(download<unsigned>(to, 1)[0], 7u);
    void* handle;
    OK(call(cublaslt, "cublasLtCreate", &handle));
}
