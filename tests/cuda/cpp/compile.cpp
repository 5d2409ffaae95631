#include "compile.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

extern char** environ;

// From the linked variant: 12080 is 12.8.
extern "C" const int stand_in_version;

namespace fs = std::filesystem;

namespace stand_in {
namespace {

// The folder of this library.
fs::path folder() {
    Dl_info info;
    dladdr(reinterpret_cast<void*>(&folder), &info);
    return fs::canonical(info.dli_fname).parent_path();
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

std::string without(std::string text, const std::string& what) {
    for (size_t at; (at = text.find(what)) != std::string::npos;) text.erase(at, what.size());
    return text;
}

std::string compiler() {
    const char* named = std::getenv("CXX");
    return named != nullptr && *named != '\0' ? named : "c++";
}

// Every operation is rounded separately, as a kernel's arithmetic is where requested; a device contracts the rest. Type
// punning by pointers is common in kernels, and nvcc allows it. Only a program's own headers exist. The TLS dialect lets the
// loader locate thread-local variables (modules.cpp).
const char* const flags[] = {
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
#if defined(__aarch64__)
    "-mtls-dialect=trad",
#else
    "-mtls-dialect=gnu",
#endif
    "-Wno-unknown-pragmas",
    "-Wno-attributes",
};

// Runs a command with its output in `log`. Returns whether it succeeded.
bool run(const std::vector<std::string>& command, const fs::path& log) {
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
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

std::string key_of(const Program& program, const Options& options) {
    Hash hash;
    std::set<fs::path> shim;
    for (const auto& file : fs::directory_iterator(folder()))
        if (file.path().extension() == ".h") shim.insert(file.path());
    for (const fs::path& header : shim) hash.add(read(header));
    hash.add(compiler());
    for (const char* flag : flags) hash.add(flag);
    hash.add(program.name);
    hash.add(program.source);
    for (const auto& [name, text] : program.headers) hash.add(name), hash.add(text);
    hash.add("options");
    for (const auto& option : options.passed_on) hash.add(option);
    return hash.hex();
}

}  // namespace

std::vector<int> architectures() {
    if (stand_in_version < 12000) return {35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90};
    if (stand_in_version < 12080) return {50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90};
    if (stand_in_version < 13000) return {50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 120};
    return {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
}

bool parse(int count, const char* const* texts, Options& options, std::string& log) {
    static const std::set<std::string> switches{
        "-lineinfo", "--generate-line-info", "-G", "--device-debug", "-use_fast_math", "--use_fast_math",
        "-default-device", "--device-as-default-execution-space", "-w", "--disable-warnings", "-restrict", "--restrict",
        "-extra-device-vectorization", "--extra-device-vectorization",
    };
    static const std::set<std::string> standards{"c++03", "c++11", "c++14", "c++17", "c++20"};
    std::string value;
    // Whether a text is one of these options. Its value follows "=", is the next text or, for -D and -U, follows directly.
    auto is = [&](int& i, std::initializer_list<std::string> names) {
        std::string text = texts[i];
        for (const std::string& name : names) {
            if (text.rfind(name + "=", 0) == 0) return value = text.substr(name.size() + 1), true;
            if (text == name && i + 1 < count) return value = texts[++i], true;
            if (name.size() == 2 && text.rfind(name, 0) == 0) return value = text.substr(2), true;
        }
        return false;
    };
    for (int i = 0; i < count; ++i) {
        if (is(i, {"--gpu-architecture", "-arch"})) {
            options.architecture = value;
        } else if (is(i, {"--std", "-std"})) {
            if (standards.count(value) == 0) return log = "nvrtc: error: invalid value for --std(-std)\n", false;
            options.passed_on.push_back("-std=" + value);
        } else if (is(i, {"--define-macro", "-D"})) {
            options.passed_on.push_back("-D" + value);
        } else if (is(i, {"--undefine-macro", "-U"})) {
            options.passed_on.push_back("-U" + value);
        } else if (!is(i, {"--fmad", "-fmad", "--ftz", "-ftz", "--prec-div", "-prec-div", "--prec-sqrt", "-prec-sqrt",
                           "--maxrregcount", "-maxrregcount", "--diag-suppress", "-diag-suppress", "--ptxas-options",
                           "-Xptxas", "--split-compile", "-split-compile"}) &&
                   switches.count(texts[i]) == 0) {
            return log = std::string("nvrtc: error: unrecognized option ") + texts[i] + " found\n", false;
        }
    }
    std::vector<int> known = architectures();
    if (options.architecture.empty()) options.architecture = "compute_" + std::to_string(known.front());
    size_t digits = options.architecture.find('_') + 1;
    std::string kind = options.architecture.substr(0, digits);
    int number = std::atoi(options.architecture.c_str() + digits);
    bool valid = (kind == "sm_" || kind == "compute_") && std::find(known.begin(), known.end(), number) != known.end();
    if (!valid) log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
    return valid;
}

std::string compile(Program& program, const Options& options) {
    fs::path here = folder(), object = here / "kernels" / (key_of(program, options) + ".so");
    if (fs::exists(object)) return object.string();
    // A folder for this call alone: copies of the stand-ins in one process share the kernels' folder.
    fs::create_directories(object.parent_path());
    std::string work_name = object.string() + ".XXXXXX";
    if (mkdtemp(work_name.data()) == nullptr) return program.log = "no folder to compile in\n", std::string();
    fs::path work = work_name;
    fs::path source = work / (program.name.empty() ? "default_program" : program.name);
    fs::path include = work / "include", made = work / "made.so";
    write(source, program.source);
    for (const auto& [name, text] : program.headers) write(include / name, text);
    std::vector<std::string> command{compiler()};
    command.insert(command.end(), std::begin(flags), std::end(flags));
    command.insert(command.end(), options.passed_on.begin(), options.passed_on.end());
    command.insert(command.end(), {"-ffile-prefix-map=" + work.string() + "/=", "-I" + include.string(), "-include",
                                   (here / "on_host.h").string(), "-x", "c++", source.string(), "-o", made.string(),
                                   "-lm"});
    bool compiled = run(command, work / "log");
    program.log = without(without(read(work / "log"), include.string() + "/"), work.string() + "/");
    if (!compiled && program.log.empty()) program.log = "the compiler " + compiler() + " did not run\n";
    std::error_code failed;
    if (compiled) fs::rename(made, object, failed);
    fs::remove_all(work);
    return compiled && !failed ? object.string() : "";
}

}  // namespace stand_in
