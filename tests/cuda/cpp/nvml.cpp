// The stand-in of NVML, which reads the state of GPUs for nvidia-smi and the daemon. Written from its documentation: names,
// numbers and layouts are those of driver 580. It compiles alone.
//
// Devices are as busy, warm and throttled as the environment says, at first in each call:
//   MILLSTREAM_STAND_IN_DEVICES      the number of devices, 1 by default
//   MILLSTREAM_STAND_IN_FAIL         `FUNCTION:NTH:CODE,...`, as for the other libraries; CODE -1 hangs
//   MILLSTREAM_STAND_IN_GPUS         a file of lines `DEVICE KEY NUMBER`, read at each call, so that a test can change it:
//                                    busy, memory_busy (percent), celsius, watts, throttle (bits), corrected, uncorrected,
//                                    persistent, mig, stranger (the id of a process), lost, and `all driver 0` for a driver
//                                    that is not loaded
// Processes that have loaded the stand-in of the driver next to this library, and the stranger, compute on device 0.
#include <dirent.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "script.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using nvmlReturn_t = int;
using nvmlDevice_t = struct Device*;

namespace {

constexpr int SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7,
              DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15;
constexpr unsigned most_devices = 16;
constexpr unsigned long long memory_bytes = 80ull << 30, process_bytes = 3ull << 30;

std::mutex mutex;
bool is_open = false;

unsigned devices() {
    const char* text = std::getenv("MILLSTREAM_STAND_IN_DEVICES");
    unsigned count = text == nullptr ? 1 : std::strtoul(text, nullptr, 10);
    return count < most_devices ? count : most_devices;
}

// The number of a key in the file; otherwise `standard`.
long long setting(const std::string& device, const char* key, long long standard) {
    const char* path = std::getenv("MILLSTREAM_STAND_IN_GPUS");
    std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "r");
    if (file == nullptr) return standard;
    char of[32], name[32];
    long long number;
    while (std::fscanf(file, "%31s %31s %lld", of, name, &number) == 3)
        if (device == of && std::strcmp(name, key) == 0) standard = number;
    std::fclose(file);
    return standard;
}

// The scripted result of a call.
int entered(const char* function) {
    static stand_in::Script script;
    int code;
    {
        std::lock_guard<std::mutex> lock(mutex);
        code = script.call(function);
    }
    while (code == -1) pause();
    if (code != 0) return code;
    if (setting("all", "driver", 1) == 0) return DRIVER_NOT_LOADED;
    return SUCCESS;
}

// The index of a device whose handle is one more.
int used(const char* function, nvmlDevice_t device, std::string& index) {
    if (int code = entered(function)) return code;
    if (!is_open) return UNINITIALIZED;
    std::size_t number = reinterpret_cast<std::size_t>(device);
    if (number < 1 || number > devices()) return INVALID_ARGUMENT;
    index = std::to_string(number - 1);
    return setting(index, "lost", 0) ? GPU_IS_LOST : SUCCESS;
}

int text(const std::string& value, char* to, unsigned room) {
    if (value.size() + 1 > room) return INSUFFICIENT_SIZE;
    std::memcpy(to, value.c_str(), value.size() + 1);
    return SUCCESS;
}

// Processes that have mapped the driver's library of this folder.
std::vector<unsigned> processes() {
    Dl_info self;
    std::vector<unsigned> found;
    if (dladdr(reinterpret_cast<void*>(&processes), &self) == 0) return found;
    std::string library = self.dli_fname;
    library = library.substr(0, library.rfind('/')) + "/libcuda.so.1";
    DIR* all = opendir("/proc");
    if (all == nullptr) return found;
    while (dirent* entry = readdir(all)) {
        unsigned pid = std::strtoul(entry->d_name, nullptr, 10);
        std::FILE* maps = pid == 0 ? nullptr : std::fopen(("/proc/" + std::string(entry->d_name) + "/maps").c_str(), "r");
        if (maps == nullptr) continue;
        char line[4096];
        while (std::fgets(line, sizeof line, maps) != nullptr)
            if (std::strstr(line, library.c_str()) != nullptr) {
                found.push_back(pid);
                break;
            }
        std::fclose(maps);
    }
    closedir(all);
    return found;
}

}  // namespace

struct nvmlPciInfo_t {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
};
struct nvmlMemory_v2_t {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct nvmlUtilization_t {
    unsigned gpu, memory;
};
struct nvmlProcessInfo_t {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
};

EXPORT nvmlReturn_t nvmlInit_v2() {
    int code = entered(__func__);
    is_open = code == SUCCESS;
    return code;
}

EXPORT nvmlReturn_t nvmlShutdown() {
    is_open = false;
    return entered(__func__);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
    if (int code = entered(__func__)) return code;
    *count = devices();
    return is_open ? SUCCESS : UNINITIALIZED;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
    std::string number;
    *device = reinterpret_cast<nvmlDevice_t>(static_cast<std::size_t>(index) + 1);
    return used(__func__, *device, number);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned room) {
    std::string index;
    if (int code = used(__func__, device, index)) return code;
    return text("NVIDIA stand-in", name, room);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned room) {
    std::string index;
    if (int code = used(__func__, device, index)) return code;
    return text("GPU-00000000-0000-0000-0000-00000000000" + index, uuid, room);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
    std::string index;
    if (int code = used(__func__, device, index)) return code;
    unsigned bus = 0x17 + std::stoul(index);
    *pci = {{}, 0, bus, 0, 0x233010de, 0, {}};
    std::snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", bus);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
    std::string index;
    if (int code = used(__func__, device, index)) return code;
    if (memory->version != (sizeof(nvmlMemory_v2_t) | 2u << 24)) return INVALID_ARGUMENT;
    unsigned long long users = index == "0" ? processes().size() + (setting(index, "stranger", 0) != 0) : 0;
    memory->total = memory_bytes;
    memory->reserved = 1ull << 30;
    memory->used = (1ull << 30) + users * process_bytes;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* rates) {
    std::string index;
    if (int code = used(__func__, device, index)) return code;
    if (setting(index, "mig", 0)) return NOT_SUPPORTED;
    bool works = index == "0" && !processes().empty();
    rates->gpu = setting(index, "busy", works ? 37 : 0);
    rates->memory = setting(index, "memory_busy", works ? 12 : 0);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned* celsius) {
    std::string index;
    if (int code = used(__func__, device, index)) return code;
    if (sensor != 0) return INVALID_ARGUMENT;
    *celsius = setting(index, "celsius", 41);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned* milliwatts) {
    std::string index;
    if (int code = used(__func__, device, index)) return code;
    *milliwatts = 1000 * setting(index, "watts", 310);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned* milliwatts) {
    std::string index;
    if (int code = used(__func__, device, index)) return code;
    *milliwatts = 700000;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long* reasons) {
    std::string index;
    if (int code = used(__func__, device, index)) return code;
    // 1: the GPU is idle.
    *reasons = setting(index, "throttle", 1);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int kind, int counter, unsigned long long* errors) {
    std::string index;
    if (int code = used(__func__, device, index)) return code;
    if (counter != 0) return INVALID_ARGUMENT;
    *errors = setting(index, kind == 0 ? "corrected" : "uncorrected", 0);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned* mode) {
    std::string index;
    if (int code = used(__func__, device, index)) return code;
    *mode = setting(index, "persistent", 1);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned* current, unsigned* pending) {
    std::string index;
    if (int code = used(__func__, device, index)) return code;
    *current = *pending = setting(index, "mig", 0);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                            nvmlProcessInfo_t* found) {
    std::string index;
    if (int code = used(__func__, device, index)) return code;
    std::vector<unsigned> all;
    if (index == "0") all = processes();
    if (unsigned stranger = setting(index, "stranger", 0)) all.push_back(stranger);
    unsigned room = *count;
    *count = all.size();
    if (room < all.size()) return INSUFFICIENT_SIZE;
    constexpr unsigned none = 0xffffffff;
    for (std::size_t at = 0; at < all.size(); ++at) found[at] = {all[at], process_bytes, none, none};
    return SUCCESS;
}
