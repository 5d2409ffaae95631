// Stands in for NVRTC: compiles kernels for the host, with on_host.h forced in.
//
// A program's "cubin" is a line of text that says where the shared object lies. Objects are kept in the folder
// `kernels` beside this library, named after a hash of all that they follow from, so that a kernel is compiled once for
// all processes; a file comes under its name whole or not at all.
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "script.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

extern char** environ;

// From the variant that is linked in: 12080 is 12.8.
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

namespace fs = std::filesystem;

namespace {

struct Program {
    std::string source, name;
    std::vector<std::pair<std::string, std::string>> headers;  // name, text
    std::string log, cubin, ptx;
};
using nvrtcProgram = Program*;

std::mutex mutex;
std::set<Program*> programs;
stand_in::Script script("STAND_IN_FAIL_NVRTC");

nvrtcResult enter(const char* function) {
    std::lock_guard<std::mutex> lock(mutex);
    return script.call(function);
}

bool exists(Program* program) {
    std::lock_guard<std::mutex> lock(mutex);
    return programs.count(program) != 0;
}

// The folder this library lies in.
fs::path folder() {
    Dl_info info;
    dladdr(reinterpret_cast<void*>(&folder), &info);
    return fs::canonical(info.dli_fname).parent_path();
}

std::vector<int> architectures() {
    if (stand_in_version < 12000) return {35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90};
    if (stand_in_version < 12080) return {50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90};
    if (stand_in_version < 13000) return {50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 120};
    return {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
}

struct Options {
    std::string architecture;  // sm_90, sm_90a, compute_90
    std::vector<std::string> passed_on;
};

// Options as NVRTC takes them, with the value in the same word or in the next. What it is not known to take is an error.
bool parse(int count, const char* const* texts, Options& options, std::string& log) {
    auto value_of = [&](int& i, std::initializer_list<const char*> names, std::string& value) {
        std::string text = texts[i];
        for (std::string name : names) {
            if (text.rfind(name + "=", 0) == 0) return value = text.substr(name.size() + 1), true;
            if (text == name && i + 1 < count) return value = texts[++i], true;
            if (name.size() == 2 && text.size() > 2 && text.rfind(name, 0) == 0) return value = text.substr(2), true;
        }
        return false;
    };
    static const std::set<std::string> ignored{
        "-lineinfo",    "--generate-line-info", "-G",           "--device-debug", "-use_fast_math",
        "--use_fast_math", "-default-device",   "--device-as-default-execution-space", "-w", "--disable-warnings",
        "--extra-device-vectorization", "-extra-device-vectorization", "--restrict", "-restrict"};
    static const std::set<std::string> standards{"c++03", "c++11", "c++14", "c++17", "c++20"};
    for (int i = 0; i < count; ++i) {
        std::string value;
        if (value_of(i, {"--gpu-architecture", "-arch"}, value)) {
            options.architecture = value;
        } else if (value_of(i, {"--std", "-std"}, value) && standards.count(value) != 0) {
            options.passed_on.push_back("-std=" + value);
        } else if (value_of(i, {"--define-macro", "-D"}, value)) {
            options.passed_on.push_back("-D" + value);
        } else if (value_of(i, {"--undefine-macro", "-U"}, value)) {
            options.passed_on.push_back("-U" + value);
        } else if (!value_of(i, {"--fmad", "-fmad", "--ftz", "-ftz", "--prec-div", "-prec-div", "--prec-sqrt",
                                 "-prec-sqrt", "--maxrregcount", "-maxrregcount", "--diag-suppress", "-diag-suppress",
                                 "--ptxas-options", "-Xptxas", "--split-compile", "-split-compile"}, value) &&
                   ignored.count(texts[i]) == 0) {
            log = std::string("nvrtc: error: unrecognized option ") + texts[i] + " found\n";
            return false;
        }
    }
    if (options.architecture.empty()) options.architecture = "compute_" + std::to_string(architectures().front());
    size_t digits = options.architecture.find('_') + 1;
    std::string kind = options.architecture.substr(0, digits);
    int number = std::atoi(options.architecture.c_str() + digits);
    bool known = kind == "sm_" || kind == "compute_";
    bool listed = false;
    for (int architecture : architectures()) listed |= architecture == number;
    if (!known || !listed) log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
    return known && listed;
}

// FNV-1a, twice.
struct Hash {
    std::uint64_t low = 0xcbf29ce484222325, high = 0x84222325cbf29ce4;
    void add(const std::string& text) {
        for (unsigned char byte : text + '\0') {
            low = (low ^ byte) * 0x100000001b3;
            high = (high ^ byte ^ low >> 57) * 0x100000001b3;
        }
    }
    std::string hex() const {
        char text[33];
        std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(high),
                      static_cast<unsigned long long>(low));
        return text;
    }
};

std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

void write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
}

std::string compiler() {
    const char* named = std::getenv("CXX");
    return named != nullptr && *named != '\0' ? named : "c++";
}

// Runs the compiler, with what it says in `log`. Whether it succeeded.
bool run(const std::vector<std::string>& arguments, const fs::path& log) {
    std::vector<char*> words;
    for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
    words.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t child;
    int failed = posix_spawnp(&child, words[0], &actions, nullptr, words.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) return false;
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

const std::vector<std::string>& flags() {
    // Every operation is rounded by itself, as a kernel's arithmetic is where it says so; a device contracts the rest.
    // Type punning by pointers is common in kernels, and their compiler allows it.
    static const std::vector<std::string> flags{
        "-O2",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        "-ffp-contract=off",
        "-fno-math-errno",
        "-fno-exceptions",
        "-fno-rtti",
        "-fno-strict-aliasing",
        "-nostdinc",
        "-Wno-unknown-pragmas",
        "-Wno-attributes",
    };
    return flags;
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
    for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
        text.replace(at, what.size(), by);
    return text;
}

// Compiles to `object`; the compiler's words go to the program's log.
bool compile(Program& program, const Options& options, const fs::path& object) {
    static std::atomic<unsigned> serial{0};
    fs::path shim = folder(), work = object;
    work += "." + std::to_string(getpid()) + "." + std::to_string(serial++);
    fs::path source = work / (program.name.empty() ? "default_program" : program.name), made = work / "made.so";
    write(source, program.source);
    for (const auto& [name, text] : program.headers) write(work / "include" / name, text);
    std::vector<std::string> arguments{compiler()};
    arguments.insert(arguments.end(), flags().begin(), flags().end());
    arguments.insert(arguments.end(), options.passed_on.begin(), options.passed_on.end());
    for (const std::string& more : {"-ffile-prefix-map=" + work.string() + "/=", "-I" + (work / "include").string(), std::string("-include"),
                                    (shim / "on_host.h").string(), std::string("-x"), std::string("c++"),
                                    source.string(), std::string("-o"), made.string(), std::string("-lm")})
        arguments.push_back(more);
    bool compiled = run(arguments, work / "log");
    program.log = replaced(replaced(read(work / "log"), (work / "include").string() + "/", ""), work.string() + "/", "");
    if (!compiled && program.log.empty()) program.log = "the compiler " + compiler() + " did not run\n";
    std::error_code failed;
    if (compiled) fs::rename(made, object, failed);
    fs::remove_all(work);
    return compiled && !failed;
}

std::string key_of(const Program& program, const Options& options) {
    Hash hash;
    for (const auto& header : fs::directory_iterator(folder()))
        if (header.path().extension() == ".h") hash.add(read(header.path()));
    hash.add(compiler());
    for (const auto& flag : flags()) hash.add(flag);
    hash.add(program.name);
    hash.add(program.source);
    for (const auto& [name, text] : program.headers) hash.add(name), hash.add(text);
    hash.add("options");
    for (const auto& option : options.passed_on) hash.add(option);
    return hash.hex();
}

nvrtcResult size_of(const std::string& text, size_t* size) {
    *size = text.size() + 1;
    return NVRTC_SUCCESS;
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
    *count = int(architectures().size());
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetSupportedArchs(int* to) {
    if (nvrtcResult fault = enter(__func__)) return fault;
    for (int architecture : architectures()) *to++ = architecture;
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
    Options options;
    program->log.clear();
    if (!parse(count, texts, options, program->log)) return NVRTC_ERROR_INVALID_OPTION;
    fs::path object = folder() / "kernels" / (key_of(*program, options) + ".so");
    std::error_code failed;
    fs::create_directories(object.parent_path(), failed);
    if (!fs::exists(object) && !compile(*program, options, object)) return NVRTC_ERROR_COMPILATION;
    // See modules.cpp. A binary is made for an architecture that is real, PTX for either.
    size_t number = options.architecture.find('_');
    program->ptx = "stand-in of a cubin: compute" + options.architecture.substr(number) + " " + object.string();
    if (options.architecture.rfind("sm", 0) == 0)
        program->cubin = "stand-in of a cubin: " + options.architecture + " " + object.string();
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* size) {
    ENTER(program);
    if (program->ptx.empty()) return NVRTC_ERROR_INVALID_PROGRAM;
    // "0 if the architecture is a virtual one."
    if (program->cubin.empty()) return *size = 0, NVRTC_SUCCESS;
    return size_of(program->cubin, size);
}

EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* cubin) {
    ENTER(program);
    return program->cubin.empty() ? NVRTC_ERROR_INVALID_PROGRAM : copy_of(program->cubin, cubin);
}

EXPORT nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t* size) {
    ENTER(program);
    return program->ptx.empty() ? NVRTC_ERROR_INVALID_PROGRAM : size_of(program->ptx, size);
}

EXPORT nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* ptx) {
    ENTER(program);
    return program->ptx.empty() ? NVRTC_ERROR_INVALID_PROGRAM : copy_of(program->ptx, ptx);
}

EXPORT nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* size) {
    ENTER(program);
    return size_of(program->log, size);
}

EXPORT nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
    ENTER(program);
    return copy_of(program->log, log);
}
