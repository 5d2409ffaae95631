// The stand-in of NCCL, which so far only reports its version.
#define EXPORT extern "C" __attribute__((visibility("default")))

// From the linked variant: 2270 is 2.27.
extern "C" const int stand_in_version;

// Computed like NCCL_VERSION of nccl.h, which changed with 2.9. The patch is the third component.
EXPORT int ncclGetVersion(int* version) {
    if (version == nullptr) return 4;  // ncclInvalidArgument
    int major = stand_in_version / 1000, minor = stand_in_version % 1000 / 10;
    *version = (major <= 2 && minor <= 8 ? 1000 : 10000) * major + 100 * minor + 3;
    return 0;
}
