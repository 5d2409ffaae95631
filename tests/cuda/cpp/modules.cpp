#include "modules.h"

#include <dlfcn.h>
#include <link.h>

#include "copies.h"

int stand_in_attribute_of_device(int attribute);

namespace stand_in {
namespace {

constexpr char gone[] = "a function of a module that was unloaded";

// The size of a loaded object's thread-local variables, which hold only shared memory.
size_t thread_local_bytes(void* object) {
    link_map* wanted = nullptr;
    if (dlinfo(object, RTLD_DI_LINKMAP, &wanted) != 0) return 0;
    std::pair<ElfW(Addr), size_t> search{wanted->l_addr, 0};
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* raw) {
            auto& search = *static_cast<std::pair<ElfW(Addr), size_t>*>(raw);
            if (info->dlpi_addr != search.first) return 0;
            for (int i = 0; i < info->dlpi_phnum; ++i)
                if (info->dlpi_phdr[i].p_type == PT_TLS) search.second = info->dlpi_phdr[i].p_memsz;
            return 1;
        },
        &search);
    return search.second;
}

}  // namespace

Module::~Module() {
    if (object != nullptr) dlclose(object);
}

void* Module::shared_memory() const {
    // Thread-local variables are allocated on first access.
    auto touch = reinterpret_cast<void* (*)()>(dlsym(object, "on_host_shared_memory"));
    touch();
    void* begin = nullptr;
    dlinfo(object, RTLD_DI_TLS_DATA, &begin);
    return begin;
}

CUresult make_launch(CUfunction handle, const Dimensions& dimensions, void** parameters, void** extra, Shared& work) {
    Driver& all = driver();
    auto function = all.functions.find(handle);
    if (function == nullptr) return all.refuse(CUDA_ERROR_INVALID_HANDLE, gone);
    const char* name = function->name.c_str();
    auto [grid, block, shared_bytes] = dimensions;
    std::uint64_t threads = std::uint64_t(block.x) * block.y * block.z;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || threads == 0 || grid.x > 0x7fffffff || grid.y > 65535 ||
        grid.z > 65535 || block.x > 1024 || block.y > 1024 || block.z > 64 || threads > most_threads)
        return all.refuse(CUDA_ERROR_INVALID_VALUE, format("%s: a grid of %u x %u x %u blocks of %u x %u x %u", name,
                                                           grid.x, grid.y, grid.z, block.x, block.y, block.z));
    if (threads > function->kernel->most_threads)
        return all.refuse(CUDA_ERROR_INVALID_VALUE, format("%s: blocks of %llu threads, bounded by %u", name,
                                                           static_cast<unsigned long long>(threads),
                                                           function->kernel->most_threads));
    if (shared_bytes > unsigned(function->most_dynamic_bytes))
        return all.refuse(CUDA_ERROR_INVALID_VALUE, format("%s: %u bytes of dynamic shared memory of %d allowed", name,
                                                           shared_bytes, function->most_dynamic_bytes));
    if (parameters == nullptr || extra != nullptr)
        return all.refuse(CUDA_ERROR_INVALID_VALUE, format("%s: its one parameter goes into kernelParams", name));
    auto* from = static_cast<const unsigned char*>(parameters[0]);
    std::vector<unsigned char> args(from, from + function->kernel->args_bytes);
    auto run = [=](std::uint64_t seed) {
        Launch launch;
        launch.kernel = function->kernel;
        launch.name = function->name.c_str();
        launch.grid = grid;
        launch.dimensions = block;
        launch.shared_bytes = shared_bytes;
        launch.args = args.data();
        launch.static_shared = function->module->shared_memory();
        launch.static_bytes = launch.static_shared == nullptr ? 0 : function->module->shared_bytes;
        return driver().launch(launch, seed);
    };
    work = std::make_shared<Work>(Work{function->name, std::move(run)});
    return CUDA_SUCCESS;
}

}  // namespace stand_in

using namespace stand_in;

// The prefix of images from the stand-in of NVRTC, followed by the architecture and the path of the object.
constexpr char image_start[] = "stand-in of a cubin: ";

EXPORT CUresult cuModuleLoadData(CUmodule* handle, const void* image) {
    ENTRY(context);
    if (driver().breaks_capture())
        return driver().refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuModuleLoadData during a capture");
    std::string text(static_cast<const char*>(image), strnlen(static_cast<const char*>(image), 8192));
    char kind[16] = "";
    int architecture = 0, length = 0;
    if (text.rfind(image_start, 0) != 0 ||
        std::sscanf(text.c_str() + sizeof(image_start) - 1, "%15[a-z]_%d%*[a-z] %n", kind, &architecture, &length) < 2)
        return driver().refuse(CUDA_ERROR_INVALID_IMAGE, "an image that the stand-in of NVRTC has not made");
    // An object is "sm_90 PATH" or, for this architecture alone, "sm_90a PATH".
    size_t path = text.find(' ', sizeof(image_start) - 1);
    int device = stand_in_attribute_of_device(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) * 10 +
                 stand_in_attribute_of_device(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    // Binaries run on devices of the same major version, PTX on all later ones ("Binary compatibility").
    bool fits = device >= architecture && (std::string(kind) == "compute" || device / 10 == architecture / 10);
    if (!fits || path == std::string::npos)
        return driver().refuse(CUDA_ERROR_NO_BINARY_FOR_GPU,
                               format("a module for %s_%d on a device of %d", kind, architecture, device));
    auto module = std::make_shared<Module>();
    module->context = current;
    module->object = dlopen(text.c_str() + path + 1, RTLD_NOW | RTLD_LOCAL);
    if (module->object == nullptr) return driver().refuse(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, dlerror());
    module->shared_bytes = thread_local_bytes(module->object);
    driver().modules.add(std::move(module), handle);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleUnload(CUmodule handle) {
    ENTRY(context);
    if (driver().breaks_capture())
        return driver().refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuModuleUnload during a capture");
    auto module = driver().modules.find(handle);
    if (module == nullptr) return driver().refuse(CUDA_ERROR_INVALID_HANDLE, "a module unloaded twice");
    driver().functions.remove_if([&](const Function& function) { return function.module == module; });
    driver().modules.remove(handle);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction* handle, CUmodule module_handle, const char* name) {
    ENTRY(context);
    auto module = driver().modules.find(module_handle);
    if (module == nullptr) return driver().refuse(CUDA_ERROR_INVALID_HANDLE, "a module that was unloaded");
    std::string symbol = std::string("on_host_kernel_") + name;
    auto* kernel = static_cast<const on_host::Kernel*>(dlsym(module->object, symbol.c_str()));
    if (kernel == nullptr) return driver().refuse(CUDA_ERROR_NOT_FOUND, format("no kernel %s in the module", name));
    auto function = std::make_shared<Function>();
    function->context = current;
    function->module = std::move(module);
    function->name = name;
    function->kernel = kernel;
    driver().functions.add(std::move(function), handle);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetAttribute(int* value, int attribute, CUfunction handle) {
    ENTRY(context);
    auto function = driver().functions.find(handle);
    if (function == nullptr) return driver().refuse(CUDA_ERROR_INVALID_HANDLE, gone);
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = int(function->kernel->most_threads); break;
        case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = int(function->module->shared_bytes); break;
        case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = int(function->kernel->args_bytes); break;
        case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = 0; break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 90; break;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = function->most_dynamic_bytes; break;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = -1; break;
        default: return driver().refuse(CUDA_ERROR_INVALID_VALUE, format("attribute %d of a function", attribute));
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction handle, int attribute, int value) {
    ENTRY(context);
    auto function = driver().functions.find(handle);
    if (function == nullptr) return driver().refuse(CUDA_ERROR_INVALID_HANDLE, gone);
    if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) return CUDA_SUCCESS;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        return driver().refuse(CUDA_ERROR_INVALID_VALUE, format("attribute %d of a function, to be set", attribute));
    int most = stand_in_attribute_of_device(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    if (value < 0 || value > std::min(most, int(most_shared_bytes)))
        return driver().refuse(CUDA_ERROR_INVALID_VALUE,
                               format("%d bytes of dynamic shared memory of %d", value, most));
    function->most_dynamic_bytes = value;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream_handle,
                               void** parameters, void** extra) {
    ENTRY(context);
    CUresult fault;
    auto stream = find_stream(stream_handle, fault);
    if (stream == nullptr) return fault;
    Shared work;
    fault = make_launch(function, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes}, parameters,
                        extra, work);
    return fault != CUDA_SUCCESS ? fault : driver().enqueue(*stream, {work, {}, {}, {}});
}
