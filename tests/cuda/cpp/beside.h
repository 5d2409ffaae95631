// The driver's stand-in, as seen by the libraries in the same folder: the functions of control.h.
#pragma once

#include <dlfcn.h>

#include <filesystem>

namespace stand_in {

// Looks up a function of the driver that this library's user has loaded. Null if there is none.
template <typename Function>
void look_up(Function*& function, const char* name) {
    Dl_info info;
    dladdr(reinterpret_cast<void*>(&look_up<Function>), &info);
    auto path = std::filesystem::canonical(info.dli_fname).parent_path() / "libcuda.so.1";
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    function = library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace stand_in
