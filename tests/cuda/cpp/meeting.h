// The meeting of ranks: shared memory in which each publishes its operations, and their data, for the others.
//
// The rank that makes a unique id creates the memory, an anonymous file that the id names by its process and descriptor. So
// ranks are threads of one process or processes. Nobody owns an operation: a rank that finds the n-th operation of all others
// published compares what they do, and adds their numbers itself, in an order that is the same on all ranks.
//
// A rank publishes operation n + 1 after it has read the n-th of all others. So the data of two operations suffices.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace stand_in {

constexpr int most_ranks = 64;

// What ranks compare, NUL-terminated.
struct Description {
    char text[1024];
};

struct Place {
    std::atomic<std::uint32_t> is_taken, is_open;
    std::int32_t process, ranks;
    // The library that the rank has loaded, and its device: no other rank may have both.
    std::uint64_t library;
    std::int32_t device;
    std::int32_t data[2];  // descriptors of the data of even and odd operations
    std::atomic<std::uint64_t> published;  // the number of the last operation
    Description descriptions[2];
};

struct Hall {
    std::uint64_t magic, seed;
    Place places[most_ranks];
};

// An open file.
class Descriptor {
public:
    explicit Descriptor(int number = -1) : number_(number) {}
    Descriptor(Descriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
    Descriptor& operator=(Descriptor&& other) noexcept;
    ~Descriptor();
    int number() const { return number_; }

private:
    int number_;
};

// A rank's part in a meeting.
class Meeting {
public:
    // Creates the shared memory for any number of ranks, which stays until the process ends, and returns its name.
    static std::string create(std::uint64_t seed);

    // Takes the place of `rank` among `ranks`. Returns null and the reason if that is not possible.
    static std::unique_ptr<Meeting> join(const std::string& name, int ranks, int rank, std::uint64_t library, int device,
                                         std::string& why);
    ~Meeting();

    // Whether all ranks have come; sets the reason if they do not fit together.
    bool is_complete(std::string& why);

    // Publishes the next operation of this rank.
    void publish(const std::string& what, const std::vector<unsigned char>& data);
    // The number of the last published operation, from 1.
    std::uint64_t last() const { return number_; }
    // Whether all ranks have published the last operation of this rank.
    bool is_published() const;
    // Why the last operation of another rank is not this rank's, or an empty text.
    std::string difference() const;
    // The data of a rank's last operation, `bytes` bytes.
    std::vector<unsigned char> data_of(int rank, std::size_t bytes) const;

    int rank() const { return rank_; }
    int ranks() const { return ranks_; }
    std::uint64_t seed() const { return hall_->seed; }

private:
    Meeting() = default;
    Hall* hall_ = nullptr;
    int rank_ = 0, ranks_ = 0;
    std::uint64_t number_ = 0;
    Descriptor own_[2];
    std::vector<Descriptor> data_[2];  // of all ranks
};

}  // namespace stand_in
