// The stand-in of NCCL: non-blocking communicators with in-place sums and broadcasts, stricter than NCCL.
//
// Ranks meet in shared memory (meeting.h), on devices of any stand-ins of the driver. The calls of a group are one operation.
// It runs in its stream, when the driver's stand-in runs that, and waits there for the other ranks. Its numbers are read when
// it first runs; then what it will write is filled with nonsense, as NCCL may write early. The results are written when it has
// the numbers of all: sums are added in an order drawn from a seed. Ranks whose n-th operations differ get an asynchronous
// error that names both; with NCCL they hang or get wrong numbers. Calls while a stream is captured are refused.
//
// The first operation of a communicator is enqueued later, by ncclCommGetAsyncError, as with NCCL, which connects ranks then.
//
// Scripted faults (control.h): the calls by their names, "silent" (the nth operation that runs never takes part) and
// "asynchronous" (it fails with this code).
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "api.h"
#include "beside.h"
#include "blocks.h"
#include "meeting.h"
#include "on_host_formats.h"
#include "random.h"
#include "script.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// From the linked variant: 2270 is 2.27.
extern "C" const int stand_in_version;

// Results, with the texts of ncclGetErrorString.
#define NCCL_RESULTS(RESULT)                                                                        \
    RESULT(ncclSuccess, 0, "no error")                                                              \
    RESULT(ncclUnhandledCudaError, 1, "unhandled cuda error (run with NCCL_DEBUG=INFO for details)") \
    RESULT(ncclSystemError, 2, "unhandled system error (run with NCCL_DEBUG=INFO for details)")     \
    RESULT(ncclInternalError, 3, "internal error - please report this issue to the NCCL developers") \
    RESULT(ncclInvalidArgument, 4, "invalid argument (run with NCCL_DEBUG=WARN for details)")       \
    RESULT(ncclInvalidUsage, 5, "invalid usage (run with NCCL_DEBUG=WARN for details)")             \
    RESULT(ncclRemoteError, 6, "remote process exited or there was a network error")                \
    RESULT(ncclInProgress, 7, "NCCL operation in progress")

enum ncclResult_t {
#define RESULT(name, number, text) name = number,
    NCCL_RESULTS(RESULT)
#undef RESULT
};

enum ncclDataType_t { ncclUint32 = 3, ncclFloat16 = 6, ncclFloat32 = 7, ncclBfloat16 = 9 };
enum ncclRedOp_t { ncclSum = 0 };

struct ncclUniqueId {
    char internal[128];
};

// The first part of ncclConfig_t, as of 2.18.
struct ncclConfig_t {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char* net_name;
    int split_share;
};

using namespace stand_in;

namespace {

constexpr std::chrono::milliseconds advance_interval(1);
constexpr const char* names[] = {"", "", "", "uint32", "", "", "float16", "float32", "", "bfloat16"};
// What is in memory that an operation is going to write.
constexpr int nonsense = 0xa5;

struct Driver {
    CUresult (*enqueue)(CUstream, const char*, CUresult (*)(void*), void (*)(void*), void*);
    int (*reaches)(std::uintptr_t, size_t);
    int (*current_device)();
    int (*is_captured)(CUstream);
    void (*advance)(CUstream);
};

const Driver& driver() {
    static const Driver found = [] {
        Driver found;
        look_up(found.enqueue, "stand_in_enqueue");
        look_up(found.reaches, "stand_in_reaches");
        look_up(found.current_device, "stand_in_current_device");
        look_up(found.is_captured, "stand_in_is_captured");
        look_up(found.advance, "stand_in_advance");
        return found;
    }();
    return found;
}

std::mutex mutex;  // of the script and of the text of the last error
Script script;
std::string last_error;

ncclResult_t enter(const char* function) {
    std::lock_guard<std::mutex> lock(mutex);
    int code = script.call(function);
    if (code != 0) last_error = std::string(function) + " failed by script";
    return ncclResult_t(code);
}

ncclResult_t refuse(ncclResult_t code, const std::string& why) {
    std::fprintf(stderr, "stand-in of NCCL: %s\n", why.c_str());
    std::lock_guard<std::mutex> lock(mutex);
    last_error = why;
    return code;
}

size_t bytes_of(ncclDataType_t type) { return type == ncclFloat32 || type == ncclUint32 ? 4 : 2; }

float load(ncclDataType_t type, const unsigned char* from, size_t at) {
    unsigned short bits;
    float value;
    if (type == ncclFloat32) std::memcpy(&value, from + 4 * at, 4);
    else std::memcpy(&bits, from + 2 * at, 2);
    if (type == ncclFloat32) return value;
    return type == ncclFloat16 ? on_host::half_to_float(bits) : on_host::bfloat16_to_float(bits);
}

void store(ncclDataType_t type, unsigned char* to, size_t at, float value) {
    unsigned short bits = type == ncclFloat16 ? on_host::float_to_half(value) : on_host::float_to_bfloat16(value);
    if (type == ncclFloat32) std::memcpy(to + 4 * at, &value, 4);
    else std::memcpy(to + 2 * at, &bits, 2);
}

constexpr int no_root = -1;

// A sum over all ranks, or a broadcast from `root`.
struct Call {
    unsigned char* numbers;
    size_t count;
    ncclDataType_t type;
    int root = no_root;
    size_t bytes() const { return count * bytes_of(type); }
    bool is_sum() const { return root == no_root; }
    // Whether `rank` has numbers that others need.
    bool is_of(int rank) const { return is_sum() || root == rank; }
    bool is_within_memory() const;
};

}  // namespace

struct ncclComm {
    std::unique_ptr<Meeting> meeting;
    std::atomic<bool> is_complete{false};
    std::atomic<int> asynchronous{0};
    std::atomic<int> open{0};  // operations that have not ended
    bool is_connected = false;
    // The group that was called first, until it is enqueued.
    std::vector<Call> first;
    CUstream stream = nullptr;
    std::atomic<bool> ends{false};

    void fail(ncclResult_t code, const std::string& why) {
        refuse(code, why);
        asynchronous = code;
    }
};

namespace {

std::mutex communicators_mutex;
std::map<const ncclComm*, std::shared_ptr<ncclComm>> communicators;

std::shared_ptr<ncclComm> find(const ncclComm* handle) {
    std::lock_guard<std::mutex> lock(communicators_mutex);
    auto found = communicators.find(handle);
    return found == communicators.end() ? nullptr : found->second;
}

bool Call::is_within_memory() const { return driver().reaches(reinterpret_cast<std::uintptr_t>(numbers), bytes()) != 0; }

// The calls of a group, in a stream.
struct Operation {
    std::shared_ptr<ncclComm> comm;
    std::vector<Call> calls;
    bool is_published = false, never_ends = false;

    std::string what() const {
        std::string all;
        for (const Call& call : calls) {
            bool is_alike = &call != &calls[0] && call.root == (&call)[-1].root;
            if (!is_alike) {
                if (!all.empty()) all += " and ";
                all += call.is_sum() ? "a sum of" : format("a broadcast from rank %d of", call.root);
            }
            all += format("%s %zu x %s", is_alike ? "," : "", call.count, names[call.type]);
            if (all.size() > 900) return all + format(" and others, %zu in all", calls.size());
        }
        return all;
    }

    CUresult publish() {
        int silent, asynchronous;
        {
            std::lock_guard<std::mutex> lock(mutex);
            silent = script.call("silent");
            asynchronous = script.call("asynchronous");
        }
        never_ends = silent != 0 || asynchronous != 0;
        if (asynchronous != 0) comm->fail(ncclResult_t(asynchronous), "an asynchronous error by script");
        if (never_ends) return CUDA_ERROR_NOT_READY;
        std::vector<unsigned char> data;
        for (const Call& call : calls) {
            if (!call.is_within_memory()) return CUDA_ERROR_ILLEGAL_ADDRESS;
            if (call.is_of(comm->meeting->rank())) data.insert(data.end(), call.numbers, call.numbers + call.bytes());
        }
        comm->meeting->publish(what(), data);
        for (const Call& call : calls)
            if (call.root != comm->meeting->rank()) std::memset(call.numbers, nonsense, call.bytes());
        is_published = true;
        return CUDA_ERROR_NOT_READY;
    }

    // The numbers of a rank, call by call; empty for broadcasts from other ranks.
    std::vector<std::vector<unsigned char>> numbers_of(int rank) const {
        size_t bytes = 0, first = 0;
        for (const Call& call : calls) bytes += call.is_of(rank) ? call.bytes() : 0;
        std::vector<unsigned char> all = comm->meeting->data_of(rank, bytes);
        std::vector<std::vector<unsigned char>> numbers;
        for (const Call& call : calls) {
            size_t end = first + (call.is_of(rank) ? call.bytes() : 0);
            numbers.emplace_back(all.begin() + ptrdiff_t(first), all.begin() + ptrdiff_t(end));
            first = end;
        }
        return numbers;
    }

    CUresult finish() {
        Meeting& meeting = *comm->meeting;
        std::string difference = meeting.difference();
        if (!difference.empty()) {
            comm->fail(ncclInvalidUsage, difference);
            never_ends = true;
            return CUDA_ERROR_NOT_READY;
        }
        std::vector<std::vector<std::vector<unsigned char>>> of_ranks;
        for (int rank = 0; rank < meeting.ranks(); ++rank) of_ranks.push_back(numbers_of(rank));
        for (size_t number = 0; number < calls.size(); ++number) {
            const Call& call = calls[number];
            if (!call.is_within_memory()) return CUDA_ERROR_ILLEGAL_ADDRESS;
            if (!call.is_sum()) {
                std::memcpy(call.numbers, of_ranks[size_t(call.root)][number].data(), call.bytes());
                continue;
            }
            Random random(meeting.seed() + meeting.last());
            Order order(std::uint64_t(meeting.ranks()), random);
            std::vector<unsigned char>& total = of_ranks[order.next()][number];
            for (int i = 1; i < meeting.ranks(); ++i) {
                const std::vector<unsigned char>& addend = of_ranks[order.next()][number];
                for (size_t at = 0; at < call.count; ++at)
                    store(call.type, total.data(), at, load(call.type, total.data(), at) + load(call.type, addend.data(), at));
            }
            std::memcpy(call.numbers, total.data(), call.bytes());
        }
        return CUDA_SUCCESS;
    }

    CUresult run() {
        if (never_ends) return CUDA_ERROR_NOT_READY;
        if (!is_published) return publish();
        return comm->meeting->is_published() ? finish() : CUDA_ERROR_NOT_READY;
    }
};

// Advances the stream while operations are open: other ranks need this one while no thread waits here.
void advance(const std::shared_ptr<ncclComm>& comm) {
    while (!comm->ends) {
        std::this_thread::sleep_for(advance_interval);
        if (comm->open > 0) driver().advance(comm->stream);
    }
}

ncclResult_t enqueue(const std::shared_ptr<ncclComm>& comm, std::vector<Call> calls) {
    ++comm->open;
    auto* operation = new Operation;
    operation->comm = comm;
    operation->calls = std::move(calls);
    CUresult enqueued = driver().enqueue(
        comm->stream, "an operation of NCCL", [](void* it) { return static_cast<Operation*>(it)->run(); },
        [](void* it) {
            --static_cast<Operation*>(it)->comm->open;
            delete static_cast<Operation*>(it);
        },
        operation);
    return enqueued == CUDA_SUCCESS ? ncclSuccess : refuse(ncclUnhandledCudaError, "the driver refuses the operation");
}

// The group of calls that a thread has begun.
struct Group {
    int depth = 0;
    ncclResult_t error = ncclSuccess;
    std::shared_ptr<ncclComm> comm;
    std::vector<Call> calls;
};
thread_local Group group;

ncclResult_t end_group() {
    Group ended = std::move(group);
    group = Group();
    if (ended.error != ncclSuccess || ended.comm == nullptr) return ended.error;
    if (ended.comm->is_connected) return enqueue(ended.comm, std::move(ended.calls));
    ended.comm->first = std::move(ended.calls);
    return ncclInProgress;
}

// Adds a call to the group; a call without a group is one.
ncclResult_t add(ncclResult_t fault, const void* from, const Call& call, ncclComm* handle, CUstream stream) {
    auto check = [&](const std::shared_ptr<ncclComm>& comm) {
        if (fault != ncclSuccess) return fault;
        if (comm == nullptr) return refuse(ncclInvalidArgument, "a communicator that does not exist (any more)");
        if (!comm->is_complete || !comm->first.empty())
            return refuse(ncclInvalidUsage, "the communicator is still in progress");
        if (comm->asynchronous != 0) return refuse(ncclInvalidUsage, "the communicator has failed");
        if (from != call.numbers) return refuse(ncclInvalidArgument, "only operations in place are stood in for");
        if (call.root < no_root || call.root >= comm->meeting->ranks())
            return refuse(ncclInvalidArgument, format("a broadcast from rank %d", call.root));
        if (driver().is_captured(stream)) return refuse(ncclInvalidUsage, "an operation in a stream that is captured");
        if (comm->stream != nullptr && comm->stream != stream)
            return refuse(ncclInvalidUsage, "a communicator's operations in several streams, which is not stood in for");
        if (group.comm != nullptr && group.comm != comm)
            return refuse(ncclInvalidUsage, "a group of several communicators, which is not stood in for");
        if (!call.is_within_memory())
            return refuse(ncclInvalidArgument, format("%zu numbers that are not in one allocation of device memory", call.count));
        return ncclSuccess;
    };
    auto comm = find(handle);
    ncclResult_t checked = check(comm);
    if (checked == ncclSuccess) {
        comm->stream = stream;
        group.comm = comm;
        group.calls.push_back(call);
    }
    group.error = group.error == ncclSuccess ? checked : group.error;
    return group.depth > 0 ? checked : end_group();
}

}  // namespace

// Computed like NCCL_VERSION of nccl.h, which changed with 2.9. The patch is the third component.
EXPORT ncclResult_t ncclGetVersion(int* version) {
    if (version == nullptr) return ncclInvalidArgument;
    int major = stand_in_version / 1000, minor = stand_in_version % 1000 / 10;
    *version = (major <= 2 && minor <= 8 ? 1000 : 10000) * major + 100 * minor + 3;
    return ncclSuccess;
}

EXPORT const char* ncclGetErrorString(int result) {
    switch (result) {
#define RESULT(name, number, text) \
    case number: return text;
        NCCL_RESULTS(RESULT)
#undef RESULT
    }
    return "unknown result code";
}

EXPORT const char* ncclGetLastError(ncclComm*) {
    static thread_local std::string text;
    std::lock_guard<std::mutex> lock(mutex);
    text = last_error;
    return text.c_str();
}

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    if (ncclResult_t fault = enter(__func__)) return fault;
    const char* seed = std::getenv("MILLSTREAM_STAND_IN_SEED");
    std::string name = Meeting::create(seed == nullptr ? 0 : std::strtoull(seed, nullptr, 10));
    if (name.empty() || name.size() >= sizeof(id->internal)) return refuse(ncclSystemError, "no shared memory");
    std::memset(id->internal, 0, sizeof(id->internal));
    std::memcpy(id->internal, name.c_str(), name.size());
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm** comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
    if (ncclResult_t fault = enter(__func__)) return fault;
    *comm = nullptr;
    if (config->magic != 0xcafebeef || config->size < sizeof(ncclConfig_t) || config->version < 21'800)
        return refuse(ncclInvalidArgument, "a configuration that is damaged, or older than 2.18");
    for (int value : {config->cga_cluster_size, config->min_ctas, config->max_ctas, config->split_share})
        if (value != INT_MIN) return refuse(ncclInvalidArgument, "a configuration that is not stood in for");
    if (config->blocking != 0) return refuse(ncclInvalidArgument, "a blocking communicator, which is not stood in for");
    int device = driver().current_device == nullptr ? -1 : driver().current_device();
    if (device < 0) return refuse(ncclUnhandledCudaError, "no device is current");
    std::string why, name(id.internal, strnlen(id.internal, sizeof(id.internal)));
    auto made = std::make_shared<ncclComm>();
    made->meeting = Meeting::join(name, ranks, rank, reinterpret_cast<std::uintptr_t>(&stand_in_version), device, why);
    if (made->meeting == nullptr) return refuse(ncclInvalidArgument, why);
    std::lock_guard<std::mutex> lock(communicators_mutex);
    *comm = made.get();
    communicators[made.get()] = std::move(made);
    return ncclInProgress;
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm* handle, int* result) {
    if (ncclResult_t fault = enter(__func__)) return fault;
    auto comm = find(handle);
    if (comm == nullptr) return refuse(ncclInvalidArgument, "a communicator that does not exist (any more)");
    std::string why;
    if (!comm->is_complete && comm->asynchronous == 0 && comm->meeting->is_complete(why)) {
        if (!why.empty()) comm->fail(ncclInvalidUsage, why);
        comm->is_complete = true;
        *result = ncclInProgress;
        return ncclSuccess;
    }
    if (!comm->first.empty()) {
        comm->is_connected = true;
        std::thread(advance, comm).detach();
        ncclResult_t enqueued = enqueue(comm, std::move(comm->first));
        comm->first.clear();
        if (enqueued != ncclSuccess) comm->asynchronous = enqueued;
        *result = ncclInProgress;
        return ncclSuccess;
    }
    *result = comm->asynchronous != 0 ? int(comm->asynchronous) : comm->is_complete ? ncclSuccess : ncclInProgress;
    return ncclSuccess;
}

// NCCL waits for open operations here, which may never end.
EXPORT ncclResult_t ncclCommDestroy(ncclComm* handle) {
    if (ncclResult_t fault = enter(__func__)) return fault;
    auto comm = find(handle);
    if (comm == nullptr) return refuse(ncclInvalidArgument, "a communicator that does not exist (any more)");
    if (comm->open > 0 || !comm->is_complete)
        return refuse(ncclInvalidUsage, "a communicator that is destroyed while it has open operations");
    comm->ends = true;
    std::lock_guard<std::mutex> lock(communicators_mutex);
    communicators.erase(handle);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupStart() {
    if (ncclResult_t fault = enter(__func__)) return fault;
    ++group.depth;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupEnd() {
    if (ncclResult_t fault = enter(__func__)) {
        group = Group();
        return fault;
    }
    if (group.depth == 0) return refuse(ncclInvalidUsage, "a group that was not begun");
    return --group.depth > 0 ? ncclSuccess : end_group();
}

EXPORT ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, int type, int operation, ncclComm* comm,
                                  CUstream stream) {
    ncclResult_t fault = enter(__func__);
    bool is_known = operation == ncclSum && (type == ncclFloat16 || type == ncclFloat32 || type == ncclBfloat16);
    if (fault == ncclSuccess && !is_known)
        fault = refuse(ncclInvalidArgument, "only sums of float16, float32 and bfloat16 are stood in for");
    return add(fault, from, {static_cast<unsigned char*>(to), count, ncclDataType_t(type)}, comm, stream);
}

EXPORT ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, int type, int root, ncclComm* comm,
                                  CUstream stream) {
    ncclResult_t fault = enter(__func__);
    if (fault == ncclSuccess && type != ncclUint32)
        fault = refuse(ncclInvalidArgument, "only broadcasts of uint32 are stood in for");
    if (fault == ncclSuccess && root < 0) fault = refuse(ncclInvalidArgument, "a broadcast from a negative rank");
    return add(fault, from, {static_cast<unsigned char*>(to), count, ncclDataType_t(type), root}, comm, stream);
}

EXPORT void stand_in_fail(const char* function, std::uint64_t nth, int code) {
    std::lock_guard<std::mutex> lock(mutex);
    script.fail(function, nth, code);
}

EXPORT std::uint64_t stand_in_calls(const char* function) {
    std::lock_guard<std::mutex> lock(mutex);
    return script.made(function);
}
