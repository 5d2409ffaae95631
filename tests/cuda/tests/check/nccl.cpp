// Sums over ranks and broadcasts: threads of this process, each with a device.
#include "check.h"

#include <chrono>
#include <climits>
#include <mutex>
#include <thread>

namespace {

enum Result { success = 0, invalid_argument = 4, invalid_usage = 5, remote_error = 6, in_progress = 7 };
enum Type { uint32 = 3, float16 = 6, float32 = 7 };

struct Id {
    char bytes[128];
};

struct Config {
    size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef, version = 21800;
    int blocking = 0, cga_cluster_size = INT_MIN, min_ctas = INT_MIN, max_ctas = INT_MIN;
    const char* net_name = nullptr;
    int split_share = INT_MIN;
};

std::string last_error() { return call<const char*>(nccl, "ncclGetLastError", static_cast<void*>(nullptr)); }

void fail_nccl(const char* function, std::uint64_t nth, int code) { call<void>(nccl, "stand_in_fail", function, nth, code); }

// A rank on the device of the same number.
struct Rank {
    void* comm = nullptr;
    CUstream by = nullptr;

    Rank(Id id, int rank, int ranks, int device) {
        CUcontext context = nullptr;
        OK(cu("cuDevicePrimaryCtxRetain", &context, device));
        OK(cu("cuCtxSetCurrent", context));
        by = stream();
        Config config;
        EQUAL(call(nccl, "ncclCommInitRankConfig", &comm, ranks, id, rank, &config), in_progress);
    }

    int state() {
        int state = in_progress;
        EQUAL(call(nccl, "ncclCommGetAsyncError", comm, &state), success);
        return state;
    }

    // The state after everything in progress.
    int settle() {
        int found;
        while ((found = state()) == in_progress) std::this_thread::sleep_for(std::chrono::microseconds(100));
        return found;
    }

    int enqueue(CUdeviceptr numbers, size_t count, Type type = float32) {
        auto* at = reinterpret_cast<void*>(numbers);
        return call(nccl, "ncclAllReduce", static_cast<const void*>(at), at, count, int(type), 0, comm, by);
    }

    int broadcast(CUdeviceptr numbers, size_t count, int root, int type = uint32) {
        auto* at = reinterpret_cast<void*>(numbers);
        return call(nccl, "ncclBroadcast", static_cast<const void*>(at), at, count, type, root, comm, by);
    }

    // Enqueues a sum and returns the state of the communicator.
    int sum(CUdeviceptr numbers, size_t count, Type type = float32) {
        int enqueued = enqueue(numbers, count, type);
        return enqueued == in_progress ? settle() : enqueued;
    }

    // Polls until the stream has ended its work, or for a while. Returns whether it has.
    bool ends() {
        CUevent done = event();
        OK(cu("cuEventRecord", done, by));
        for (int i = 0; i < 300; ++i) {
            if (cu("cuEventQuery", done) == CUDA_SUCCESS) return true;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return false;
    }
};

Id begin_ranks(int ranks) {
    call<void>(cuda, "stand_in_devices", ranks);
    begin();
    Id id;
    EQUAL(call(nccl, "ncclGetUniqueId", &id), success);
    return id;
}

// Runs `run` for each rank in a thread.
void on_ranks(int ranks, const std::function<void(Rank&, int)>& run) {
    Id id = begin_ranks(ranks);
    std::vector<std::thread> threads;
    for (int i = 0; i < ranks; ++i)
        threads.emplace_back([=] {
            Rank rank(id, i, ranks, i);
            EQUAL(rank.settle(), success);
            run(rank, i);
        });
    for (std::thread& thread : threads) thread.join();
}

}  // namespace

CASE(nccl_sums_are_the_same_on_all_ranks) {
    constexpr int ranks = 3;
    std::vector<float> sums[ranks];
    on_ranks(ranks, [&](Rank& rank, int number) {
        for (int step = 1; step <= 4; ++step) {
            std::vector<float> numbers(5000, 0.1f * float(number + step));
            std::vector<unsigned short> halves(3, 0x3c00);
            CUdeviceptr first = upload(numbers), second = upload(halves);
            EQUAL(call(nccl, "ncclGroupStart"), success);
            EQUAL(rank.enqueue(first, numbers.size()), success);
            EQUAL(rank.enqueue(second, halves.size(), float16), success);
            int ended = call(nccl, "ncclGroupEnd");
            EQUAL(ended, step == 1 ? in_progress : success);
            // The first operation is enqueued by ncclCommGetAsyncError, and not before.
            if (step == 1) EQUAL(*reinterpret_cast<float*>(first), numbers[0]);
            EQUAL(rank.settle(), success);
            synchronize(rank.by);
            sums[number] = download<float>(first, numbers.size());
            CHECK(std::fabs(sums[number][4999] - 0.1f * float(3 + 3 * step)) < 1e-6);
            EQUAL(download<unsigned short>(second, 3)[2], 0x4200);  // 3
        }
        EQUAL(call(nccl, "ncclCommDestroy", rank.comm), success);
    });
    for (int rank = 1; rank < ranks; ++rank)
        EQUAL(std::memcmp(sums[0].data(), sums[rank].data(), 5000 * sizeof(float)), 0);
}

// Each rank has a section, of its own size, and gets those of the others. Sums may be in the same group.
CASE(nccl_broadcasts_reach_all_ranks) {
    constexpr int ranks = 3;
    on_ranks(ranks, [&](Rank& rank, int number) {
        for (unsigned step = 1; step <= 4; ++step) {
            std::vector<unsigned> sections(ranks * 100, 7);
            std::fill_n(&sections[size_t(100 * number)], 10 * (number + 1), 1000 * step + unsigned(number));
            CUdeviceptr all = upload(sections), sum = upload(std::vector<float>{1});
            EQUAL(call(nccl, "ncclGroupStart"), success);
            for (int root = 0; root < ranks; ++root)
                EQUAL(rank.broadcast(all + 400 * CUdeviceptr(root), size_t(10 * (root + 1)), root), success);
            EQUAL(rank.enqueue(sum, 1), success);
            EQUAL(call(nccl, "ncclGroupEnd"), step == 1 ? in_progress : success);
            EQUAL(rank.settle(), success);
            synchronize(rank.by);
            std::vector<unsigned> found = download<unsigned>(all, sections.size());
            for (unsigned at = 0; at < found.size(); ++at) {
                bool is_of_section = at % 100 < 10 * (at / 100 + 1);
                EQUAL(found[at], is_of_section ? 1000 * step + at / 100 : 7u);
            }
            EQUAL(download<float>(sum, 1)[0], float(ranks));
        }
        EQUAL(call(nccl, "ncclCommDestroy", rank.comm), success);
    });
}

CASE(nccl_names_different_broadcasts) {
    on_ranks(2, [](Rank& rank, int number) {
        CUdeviceptr numbers = upload(std::vector<unsigned>(3));
        EQUAL(rank.broadcast(numbers, 3, 1), in_progress);
        EQUAL(rank.settle(), success);
        CHECK(rank.ends());
        EQUAL(rank.broadcast(numbers, 2, number), success);
        CHECK(!rank.ends());
        EQUAL(rank.state(), invalid_usage);
        CHECK(last_error().find("a broadcast from rank 0 of 2 x uint32") != std::string::npos);
        CHECK(last_error().find("a broadcast from rank 1 of 2 x uint32") != std::string::npos);
        std::_Exit(0);
    });
}

CASE(nccl_advances_while_no_thread_waits) {
    on_ranks(2, [](Rank& rank, int number) {
        CUdeviceptr numbers = upload(std::vector<float>{1, 2});
        EQUAL(rank.sum(numbers, 2), success);
        if (number == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
        CHECK(rank.ends());
        EQUAL(download<float>(numbers, 2)[1], 4.0f);
    });
}

CASE(nccl_names_ranks_with_different_operations) {
    on_ranks(2, [](Rank& rank, int number) {
        CUdeviceptr numbers = upload(std::vector<float>(3));
        EQUAL(rank.sum(numbers, 3), success);
        CHECK(rank.ends());
        EQUAL(rank.sum(numbers, size_t(2 + number)), success);
        CHECK(!rank.ends());
        EQUAL(rank.state(), invalid_usage);
        CHECK(last_error().find("operation 2: rank ") == 0);
        CHECK(last_error().find("a sum of 2 x float32") != std::string::npos);
        CHECK(last_error().find("a sum of 3 x float32") != std::string::npos);
        std::_Exit(0);  // the operations never end
    });
}

CASE(nccl_fails_by_script) {
    on_ranks(2, [](Rank& rank, int number) {
        static std::mutex one_after_another;
        CUdeviceptr numbers = upload(std::vector<float>(3));
        {
            std::lock_guard<std::mutex> lock(one_after_another);
            fail_nccl("ncclAllReduce", 1, remote_error);
            EQUAL(rank.enqueue(numbers, 3), remote_error);
        }
        if (number == 1) return;
        fail_nccl("silent", 1, 1);
        EQUAL(rank.sum(numbers, 3), success);
        CHECK(!rank.ends());
        EQUAL(rank.state(), success);
        EQUAL(call(nccl, "ncclCommDestroy", rank.comm), invalid_usage);
        std::_Exit(0);
    });
}

CASE(nccl_fails_asynchronously_by_script) {
    on_ranks(2, [](Rank& rank, int number) {
        if (number == 1) std::this_thread::sleep_for(std::chrono::seconds(10));
        fail_nccl("asynchronous", 1, remote_error);
        CUdeviceptr numbers = upload(std::vector<float>(3));
        EQUAL(rank.sum(numbers, 3), success);
        CHECK(!rank.ends());
        EQUAL(rank.state(), remote_error);
        EQUAL(rank.enqueue(numbers, 3), invalid_usage);
        std::_Exit(0);
    });
}

CASE(nccl_refuses_what_is_wrong) {
    Id id = begin_ranks(1);
    Rank rank(id, 0, 1, 0);
    CUdeviceptr numbers = allocate(12);
    // Before ranks have met, in a captured stream, and beyond the memory.
    EQUAL(rank.enqueue(numbers, 3), invalid_usage);
    EQUAL(rank.settle(), success);
    OK(cu("cuStreamBeginCapture_v2", rank.by, 1));
    EQUAL(rank.enqueue(numbers, 3), invalid_usage);
    CUgraph graph = nullptr;
    OK(cu("cuStreamEndCapture", rank.by, &graph));
    EQUAL(rank.enqueue(numbers, 4), invalid_argument);
    EQUAL(rank.broadcast(numbers, 4, 0), invalid_argument);
    // A rank that does not exist, and a type of sums.
    for (int root : {-1, 1}) EQUAL(rank.broadcast(numbers, 3, root), invalid_argument);
    EQUAL(rank.broadcast(numbers, 3, 0, float32), invalid_argument);
    EQUAL(rank.enqueue(numbers, 3), in_progress);
    EQUAL(rank.enqueue(numbers, 3), invalid_usage);
    EQUAL(rank.settle(), success);
    // Memory that was freed before the sum has run: cuMemFree waits.
    OK(cu("cuMemFree_v2", numbers));
    CHECK(rank.ends());
    EQUAL(call(nccl, "ncclCommDestroy", rank.comm), success);
    EQUAL(call(nccl, "ncclCommDestroy", rank.comm), invalid_argument);
    EQUAL(call(nccl, "ncclGroupEnd"), invalid_usage);
}

CASE(nccl_refuses_two_ranks_on_one_device) {
    Id id = begin_ranks(2);
    Rank first(id, 0, 2, 1), second(id, 1, 2, 1);
    EQUAL(first.settle(), invalid_usage);
    EQUAL(second.settle(), invalid_usage);
    CHECK(last_error().find("ranks 0 and 1 have the same GPU") == 0);
    Config config;
    void* comm = nullptr;
    EQUAL(call(nccl, "ncclCommInitRankConfig", &comm, 2, id, 1, &config), invalid_argument);
}
