// Shared by the checks of the stand-ins: loading the libraries like a program does, and a few helpers.
#pragma once

#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "../../cpp/api.h"

// Each case runs in a separate process; all its assertions must hold.
struct Case {
    const char* name;
    void (*run)();
    Case(const char* name, void (*run)());
};
#define CASE(name)                       \
    static void name();                  \
    static Case case_of_##name(#name, name); \
    static void name()

[[noreturn]] void fail(const char* file, int line, const std::string& what);
#define CHECK(holds) ((holds) ? (void)0 : fail(__FILE__, __LINE__, #holds))
#define EQUAL(left, right) equal(left, right, #left, __FILE__, __LINE__)
#define OK(call) EQUAL(call, CUDA_SUCCESS)

template <typename A, typename B>
void equal(const A& left, const B& right, const char* what, const char* file, int line) {
    if (left == right) return;
    fail(file, line, std::string(what) + " is " + std::to_string(left) + ", not " + std::to_string(right));
}

// A function of one of the libraries: `in_cuda<CUresult>("cuInit", 0u)`.
enum Of { cuda, nvrtc, cublaslt, nccl };
void* symbol(Of library, const char* name);
// The same, or null.
void* find(Of library, const char* name);
// Switches to the libraries of the second folder.
void look_into_copy();

template <typename Result = CUresult, typename... Args>
Result call(Of library, const char* name, Args... args) {
    return reinterpret_cast<Result (*)(Args...)>(symbol(library, name))(args...);
}
template <typename... Args>
CUresult cu(const char* name, Args... args) {
    return call(cuda, name, args...);
}

// The device's context, current.
CUcontext begin();
std::string message();
std::uint64_t count(const char* what);

CUdeviceptr allocate(size_t bytes);
CUstream stream();
CUevent event();
void synchronize(CUstream stream);

// Page-locked memory.
template <typename T>
T* locked(size_t elements) {
    void* memory = nullptr;
    OK(cu("cuMemHostAlloc", &memory, elements * sizeof(T), 0u));
    return static_cast<T*>(memory);
}

// Copies bytes from and to a device address, and waits.
template <typename T>
std::vector<T> download(CUdeviceptr from, size_t elements) {
    std::vector<T> to(elements);
    CUstream by = stream();
    OK(cu("cuMemcpyDtoHAsync_v2", static_cast<void*>(to.data()), from, elements * sizeof(T), by));
    return to;
}
template <typename T>
CUdeviceptr upload(const std::vector<T>& from) {
    CUdeviceptr to = allocate(from.size() * sizeof(T));
    CUstream by = stream();
    OK(cu("cuMemcpyHtoDAsync_v2", to, static_cast<const void*>(from.data()), from.size() * sizeof(T), by));
    synchronize(by);
    return to;
}

// A kernel of kernels.cu, or of other source.
CUmodule compile(const std::string& source);
CUfunction kernel(const char* name);

template <typename Args>
CUresult launch(CUfunction function, unsigned grid, unsigned block, CUstream by, Args args, unsigned shared_bytes = 0) {
    void* parameters[] = {&args};
    return cu("cuLaunchKernel", function, grid, 1u, 1u, block, 1u, 1u, shared_bytes, by,
              static_cast<void**>(parameters), static_cast<void**>(nullptr));
}
