// The stand-in of NVRTC: compiles kernels for the host (compile.h).
//
// A program's "cubin" is a line of text with the path of the shared object, which the driver's stand-in loads.
#include <cstring>
#include <memory>
#include <mutex>
#include <set>

#include "compile.h"
#include "script.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// From the linked variant: 12080 is 12.8.
extern "C" const int stand_in_version;

using nvrtcResult = int;
enum : nvrtcResult {
    NVRTC_SUCCESS = 0,
    NVRTC_ERROR_OUT_OF_MEMORY = 1,
    NVRTC_ERROR_PROGRAM_CREATION_FAILURE = 2,
    NVRTC_ERROR_INVALID_INPUT = 3,
    NVRTC_ERROR_INVALID_PROGRAM = 4,
    NVRTC_ERROR_INVALID_OPTION = 5,
    NVRTC_ERROR_COMPILATION = 6,
    NVRTC_ERROR_BUILTIN_OPERATION_FAILURE = 7,
    NVRTC_ERROR_INTERNAL_ERROR = 11,
};

using stand_in::Program;
using nvrtcProgram = Program*;

namespace {

std::mutex mutex;
std::set<Program*> programs;
stand_in::Script script;

nvrtcResult enter(const char* function) {
    std::lock_guard<std::mutex> lock(mutex);
    return script.call(function);
}

bool exists(Program* program) {
    std::lock_guard<std::mutex> lock(mutex);
    return programs.count(program) != 0;
}

nvrtcResult copy_of(const std::string& text, char* to) {
    std::memcpy(to, text.c_str(), text.size() + 1);
    return NVRTC_SUCCESS;
}

}  // namespace

#define ENTER(program)                                              \
    if (nvrtcResult fault = enter(__func__)) return fault;          \
    if (!exists(program)) return NVRTC_ERROR_INVALID_PROGRAM

EXPORT void stand_in_fail(const char* function, std::uint64_t nth, int code) {
    std::lock_guard<std::mutex> lock(mutex);
    script.fail(function, nth, code);
}

EXPORT std::uint64_t stand_in_calls(const char* function) {
    std::lock_guard<std::mutex> lock(mutex);
    return script.made(function);
}

EXPORT const char* nvrtcGetErrorString(nvrtcResult result) {
    switch (result) {
        case NVRTC_SUCCESS: return "NVRTC_SUCCESS";
        case NVRTC_ERROR_OUT_OF_MEMORY: return "NVRTC_ERROR_OUT_OF_MEMORY";
        case NVRTC_ERROR_PROGRAM_CREATION_FAILURE: return "NVRTC_ERROR_PROGRAM_CREATION_FAILURE";
        case NVRTC_ERROR_INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
        case NVRTC_ERROR_INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
        case NVRTC_ERROR_INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
        case NVRTC_ERROR_COMPILATION: return "NVRTC_ERROR_COMPILATION";
        case NVRTC_ERROR_BUILTIN_OPERATION_FAILURE: return "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE";
        case NVRTC_ERROR_INTERNAL_ERROR: return "NVRTC_ERROR_INTERNAL_ERROR";
    }
    return "NVRTC_ERROR unknown";
}

EXPORT nvrtcResult nvrtcVersion(int* major, int* minor) {
    if (nvrtcResult fault = enter(__func__)) return fault;
    *major = stand_in_version / 1000;
    *minor = stand_in_version % 1000 / 10;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
    if (nvrtcResult fault = enter(__func__)) return fault;
    *count = int(stand_in::architectures().size());
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetSupportedArchs(int* to) {
    if (nvrtcResult fault = enter(__func__)) return fault;
    for (int architecture : stand_in::architectures()) *to++ = architecture;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram* to, const char* source, const char* name, int headers,
                                      const char* const* texts, const char* const* names) {
    if (nvrtcResult fault = enter(__func__)) return fault;
    if (source == nullptr || headers < 0) return NVRTC_ERROR_INVALID_INPUT;
    auto program = std::make_unique<Program>();
    program->source = source;
    program->name = name == nullptr ? "" : name;
    for (int i = 0; i < headers; ++i) program->headers.emplace_back(names[i], texts[i]);
    std::lock_guard<std::mutex> lock(mutex);
    *to = program.release();
    programs.insert(*to);
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
    ENTER(*program);
    std::lock_guard<std::mutex> lock(mutex);
    programs.erase(*program);
    delete *program;
    *program = nullptr;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* texts) {
    ENTER(program);
    stand_in::Options options;
    program->log.clear();
    if (!stand_in::parse(count, texts, options, program->log)) return NVRTC_ERROR_INVALID_OPTION;
    std::string object = stand_in::compile(*program, options);
    if (object.empty()) return NVRTC_ERROR_COMPILATION;
    // In the form that modules.cpp reads. Binaries exist for real architectures only, PTX also for virtual ones.
    const char start[] = "stand-in of a cubin: ";
    program->ptx = start + ("compute" + options.architecture.substr(options.architecture.find('_'))) + " " + object;
    if (options.architecture.rfind("sm", 0) == 0) program->cubin = start + options.architecture + " " + object;
    return NVRTC_SUCCESS;
}

// "The value of cubinSizeRet is set to 0 if the value specified to -arch is a virtual architecture."
EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* size) {
    ENTER(program);
    *size = program->cubin.empty() ? 0 : program->cubin.size() + 1;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* cubin) {
    ENTER(program);
    return program->cubin.empty() ? NVRTC_SUCCESS : copy_of(program->cubin, cubin);
}

EXPORT nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t* size) {
    ENTER(program);
    *size = program->ptx.size() + 1;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* ptx) {
    ENTER(program);
    return copy_of(program->ptx, ptx);
}

EXPORT nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* size) {
    ENTER(program);
    *size = program->log.size() + 1;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
    ENTER(program);
    return copy_of(program->log, log);
}
