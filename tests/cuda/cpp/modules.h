// Modules and kernels.
#pragma once

#include "driver.h"

namespace stand_in {

// A shared object made by the stand-in of NVRTC. Loading one twice shares its variables.
struct Module {
    Context* context;
    void* object = nullptr;
    size_t shared_bytes = 0;  // static shared memory of all its kernels
    ~Module();

    // The address of that memory in the calling host thread.
    void* shared_memory() const;
};

struct Function {
    Context* context;
    std::shared_ptr<Module> module;
    std::string name;
    const on_host::Kernel* kernel;
    int most_dynamic_bytes = 48 << 10;
};

struct Dimensions {
    on_host::Index grid, block;
    unsigned shared_bytes;
};

// Checks a launch, and turns it into work with a copy of the kernel's parameters.
CUresult make_launch(CUfunction handle, const Dimensions& dimensions, void** parameters, void** extra, Shared& work);

}  // namespace stand_in
