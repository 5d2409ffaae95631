// Runs one case on the stand-ins in a folder: `check FOLDER CASE [COPY]`. Lists the cases: `check`.
#include "check.h"

#include <fstream>
#include <map>
#include <sstream>

namespace {

std::map<std::string, void (*)()>& cases() {
    static std::map<std::string, void (*)()> cases;
    return cases;
}

std::string folder, copy;
void* libraries[4];

std::string text_of(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

}  // namespace

Case::Case(const char* name, void (*run)()) : name(name), run(run) { cases()[name] = run; }

void fail(const char* file, int line, const std::string& what) {
    std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
    std::_Exit(1);
}

void* find(Of library, const char* name) {
    static const std::vector<const char*> names[] = {
        {"libcuda.so.1"}, {"libnvrtc.so.13", "libnvrtc.so.12"}, {"libcublasLt.so.13", "libcublasLt.so.12"},
        {"libnccl.so.2"}};
    void*& opened = libraries[library];
    for (const char* file : names[library])
        if (opened == nullptr) opened = dlopen((folder + "/" + file).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) fail(__FILE__, __LINE__, dlerror());
    return dlsym(opened, name);
}

void* symbol(Of library, const char* name) {
    void* found = find(library, name);
    if (found == nullptr) fail(__FILE__, __LINE__, std::string("no ") + name);
    return found;
}

void look_into_copy() {
    folder = copy;
    for (void*& library : libraries) library = nullptr;
}

CUcontext begin() {
    OK(cu("cuInit", 0u));
    CUcontext context = nullptr;
    OK(cu("cuDevicePrimaryCtxRetain", &context, 0));
    OK(cu("cuCtxSetCurrent", context));
    return context;
}

std::string message() {
    char text[1024];
    call<size_t>(cuda, "stand_in_message", static_cast<char*>(text), sizeof(text));
    return text;
}

std::uint64_t count(const char* what) { return call<std::uint64_t>(cuda, "stand_in_count", what); }

CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr memory = 0;
    OK(cu("cuMemAlloc_v2", &memory, bytes));
    return memory;
}

CUstream stream() {
    CUstream stream = nullptr;
    OK(cu("cuStreamCreate", &stream, 1u));
    return stream;
}

CUevent event() {
    CUevent event = nullptr;
    OK(cu("cuEventCreate", &event, 2u));
    return event;
}

void synchronize(CUstream stream) { OK(cu("cuStreamSynchronize", stream)); }

CUmodule compile(const std::string& source) {
    void* program = nullptr;
    const char* const* none = nullptr;
    OK(call(nvrtc, "nvrtcCreateProgram", &program, source.c_str(), "check.cu", 0, none, none));
    const char* options[] = {"--gpu-architecture=sm_90", "--std=c++17"};
    if (call(nvrtc, "nvrtcCompileProgram", program, 2, static_cast<const char* const*>(options)) != 0) {
        size_t size = 0;
        call(nvrtc, "nvrtcGetProgramLogSize", program, &size);
        std::string log(size, 0);
        call(nvrtc, "nvrtcGetProgramLog", program, &log[0]);
        fail(__FILE__, __LINE__, log);
    }
    size_t size = 0;
    OK(call(nvrtc, "nvrtcGetCUBINSize", program, &size));
    std::vector<char> cubin(size);
    OK(call(nvrtc, "nvrtcGetCUBIN", program, cubin.data()));
    OK(call(nvrtc, "nvrtcDestroyProgram", &program));
    CUmodule module = nullptr;
    OK(cu("cuModuleLoadData", &module, static_cast<const void*>(cubin.data())));
    return module;
}

CUfunction kernel(const char* name) {
    static CUmodule module = compile(text_of(KERNELS));
    CUfunction function = nullptr;
    OK(cu("cuModuleGetFunction", &function, module, name));
    return function;
}

int main(int count, char** words) {
    if (count == 1) {
        for (const auto& [name, _] : cases()) std::puts(name.c_str());
        return 0;
    }
    folder = words[1];
    copy = count > 3 ? words[3] : "";
    auto found = cases().find(words[2]);
    if (found == cases().end()) fail(__FILE__, __LINE__, std::string("no case ") + words[2]);
    found->second();
    return 0;
}
