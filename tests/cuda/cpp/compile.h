// Kernels compiled for the host.
//
// Objects are kept in the folder `kernels` beside the library, named after a hash of all that they follow from, so that
// a kernel is compiled once for all processes; a file comes under its name whole or not at all.
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

// Those that this version knows, least first.
std::vector<int> architectures();

// Options as NVRTC takes them. What it is not known to take is an error, told in `log`.
bool parse(int count, const char* const* texts, Options& options, std::string& log);

// Compiles a program, with what the compiler says in its log. The path of the object, or "".
std::string compile(Program& program, const Options& options);

}  // namespace stand_in
