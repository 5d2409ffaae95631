// NVRTC: programs, errors in programs, and compiled programs.
#include "check.h"

#include <unistd.h>

#include <thread>

namespace {

struct Program {
    void* handle = nullptr;

    explicit Program(const char* source, std::vector<const char*> texts = {}, std::vector<const char*> names = {}) {
        OK(call(nvrtc, "nvrtcCreateProgram", &handle, source, "some.cu", int(texts.size()),
                static_cast<const char* const*>(texts.data()), static_cast<const char* const*>(names.data())));
    }
    int compile(std::vector<const char*> options = {"--gpu-architecture=sm_90"}) {
        return call(nvrtc, "nvrtcCompileProgram", handle, int(options.size()),
                    static_cast<const char* const*>(options.data()));
    }
    std::string text(const char* size_of, const char* get) {
        size_t size = 99;
        OK(call(nvrtc, size_of, handle, &size));
        std::string text(size, 'x');
        OK(call(nvrtc, get, handle, &text[0]));
        return text.c_str();
    }
    std::string log() { return text("nvrtcGetProgramLogSize", "nvrtcGetProgramLog"); }
    std::string cubin() { return text("nvrtcGetCUBINSize", "nvrtcGetCUBIN"); }
    std::string ptx() { return text("nvrtcGetPTXSize", "nvrtcGetPTX"); }
};

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// The exact messages of NVRTC.
void refuses(std::vector<const char*> options, const char* log) {
    Program program("struct A { int* to; }; KERNEL(a, 1, A) {}");
    EQUAL(program.compile(options), 5);
    if (program.log() != log) fail(__FILE__, __LINE__, program.log());
}

CUresult load(const std::string& image) {
    CUmodule module = nullptr;
    return cu("cuModuleLoadData", &module, static_cast<const void*>(image.c_str()));
}

}  // namespace

CASE(programs_with_headers) {
    begin();
    Program program("#include \"one.cuh\"\nKERNEL(a, 32, A) { args.to[threadIdx.x] = one() + MORE; }",
                    {"#include \"two/two.cuh\"\n__device__ inline int one() { return 1 + two(); }",
                     "struct A { int* to; };\n__device__ inline int two() { return 2; }"},
                    {"one.cuh", "two/two.cuh"});
    EQUAL(program.compile({"-arch", "sm_90", "--std=c++17", "-DMORE=4", "-lineinfo"}), 0);
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    OK(cu("cuModuleLoadData", &module, static_cast<const void*>(program.cubin().c_str())));
    EQUAL(cu("cuModuleGetFunction", &function, module, "b"), CUDA_ERROR_NOT_FOUND);
    OK(cu("cuModuleGetFunction", &function, module, "a"));
    CUdeviceptr to = allocate(128);
    CUstream by = stream();
    OK(launch(function, 1, 32, by, to));
    OK(cu("cuModuleUnload", module));
    EQUAL(launch(function, 1, 32, by, to), CUDA_ERROR_INVALID_HANDLE);
    EQUAL(cu("cuModuleUnload", module), CUDA_ERROR_INVALID_HANDLE);
    // Earlier launches keep the module alive.
    synchronize(by);
    EQUAL(download<int>(to, 32)[31], 7);
}

CASE(programs_errors_have_a_place) {
    Program program("struct A { int* to; };\nKERNEL(a, 32, A) { args.to[0] = nothing; }");
    EQUAL(program.compile(), 6);
    CHECK(has(program.log(), "some.cu:2:"));
    CHECK(has(program.log(), "nothing"));
    CHECK(!has(program.log(), "kernels/"));
    CHECK(program.cubin().empty());
    Program header("#include \"bad.cuh\"", {"int x = y;"}, {"bad.cuh"});
    EQUAL(header.compile(), 6);
    CHECK(has(header.log(), "bad.cuh:1:"));
    // Arguments are constant, and there is no standard library, as on a device.
    for (const char* source : {"struct A { int n; }; KERNEL(a, 32, A) { args.n = 1; }", "#include <cstdint>",
                               "#include <stdint.h>", "uint32_t x;", "float x = INFINITY;"})
        EQUAL(Program(source).compile(), 6);
}

CASE(programs_options_are_known) {
    refuses({"--no-such-option"}, "nvrtc: error: unrecognized option --no-such-option found\n");
    refuses({"--gpu-architecture=sm_35"}, "nvrtc: error: invalid value for --gpu-architecture (-arch)\n");
    refuses({"--gpu-architecture=banana"}, "nvrtc: error: invalid value for --gpu-architecture (-arch)\n");
    refuses({"--std=c++99"}, "nvrtc: error: invalid value for --std(-std)\n");
    int count = 0;
    OK(call(nvrtc, "nvrtcGetNumSupportedArchs", &count));
    std::vector<int> all(static_cast<size_t>(count));
    OK(call(nvrtc, "nvrtcGetSupportedArchs", all.data()));
    EQUAL(all.front(), 75);
    EQUAL(all.back(), 121);
}

CASE(programs_are_for_an_architecture) {
    begin();
    const char* source = "struct A { int* to; }; KERNEL(a, 32, A) {}";
    Program same(source), older(source), newer(source), virtual_one(source), other(source);
    EQUAL(same.compile(), 0);
    EQUAL(older.compile({"--gpu-architecture=sm_80"}), 0);
    EQUAL(newer.compile({"--gpu-architecture=sm_100"}), 0);
    EQUAL(virtual_one.compile({"--gpu-architecture=compute_80"}), 0);
    OK(load(same.cubin()));
    EQUAL(load(older.cubin()), CUDA_ERROR_NO_BINARY_FOR_GPU);
    OK(load(older.ptx()));
    EQUAL(load(newer.cubin()), CUDA_ERROR_NO_BINARY_FOR_GPU);
    EQUAL(load(newer.ptx()), CUDA_ERROR_NO_BINARY_FOR_GPU);
    CHECK(virtual_one.cubin().empty());
    OK(load(virtual_one.ptx()));
    EQUAL(other.compile({"--gpu-architecture=sm_90a"}), 0);
    OK(load(other.cubin()));
    EQUAL(load("something else"), CUDA_ERROR_INVALID_IMAGE);
}

CASE(programs_are_compiled_once) {
    begin();
    std::vector<std::thread> threads;
    std::vector<std::string> made(4);
    std::string source = "struct A { int* to; }; KERNEL(a, 32, A) { args.to[0] = " + std::to_string(getpid()) + "; }";
    symbol(nvrtc, "nvrtcVersion");
    for (size_t i = 0; i < made.size(); ++i)
        threads.emplace_back([&, i] {
            Program program(source.c_str());
            EQUAL(program.compile(), 0);
            made[i] = program.cubin();
        });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& cubin : made) CHECK(cubin == made[0]);
    OK(load(made[0]));
    Program other(source.c_str());
    EQUAL(other.compile({"--gpu-architecture=sm_90", "-DMORE"}), 0);
    CHECK(other.cubin() != made[0]);
}

CASE(programs_end_once) {
    Program program("");
    void* handle = program.handle;
    OK(call(nvrtc, "nvrtcDestroyProgram", &program.handle));
    CHECK(program.handle == nullptr);
    EQUAL(call(nvrtc, "nvrtcDestroyProgram", &handle), 4);
    size_t size;
    EQUAL(call(nvrtc, "nvrtcGetPTXSize", handle, &size), 4);
}
