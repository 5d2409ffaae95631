// Compiles kernels for the host.
//
// Objects are cached in the folder `kernels` beside the library, named by a hash of all their inputs, so that a kernel is
// compiled once for all processes. A file appears under its name only when it is complete.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace stand_in {

struct Program {
    std::string source, name;
    std::vector<std::pair<std::string, std::string>> headers;  // name, text
    std::string log, cubin, ptx;
};

struct Options {
    std::string architecture;  // sm_90, sm_90a, compute_90
    std::vector<std::string> passed_on;
};

// The architectures that this version supports, in ascending order.
std::vector<int> architectures();

// Parses options in NVRTC's form. An unsupported option is an error, reported in `log`.
bool parse(int count, const char* const* texts, Options& options, std::string& log);

// Compiles a program and stores the compiler's output in its log. Returns the path of the object, or "".
std::string compile(Program& program, const Options& options);

}  // namespace stand_in
