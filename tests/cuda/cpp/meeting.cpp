#include "meeting.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "blocks.h"

namespace stand_in {
namespace {

constexpr std::uint64_t magic = 0x676e697465656d21;

// The file of another process, or of this one.
std::string path_of(int process, int descriptor) { return format("/proc/%d/fd/%d", process, descriptor); }

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
}

Descriptor::~Descriptor() {
    if (number_ >= 0) close(number_);
}

std::string Meeting::create(std::uint64_t seed) {
    int file = memfd_create("nccl-meeting", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, sizeof(Hall)) != 0) return "";
    Hall head{};
    head.magic = magic;
    head.seed = seed;
    if (pwrite(file, &head, offsetof(Hall, places), 0) != ssize_t(offsetof(Hall, places))) return "";
    return path_of(getpid(), file);
}

std::unique_ptr<Meeting> Meeting::join(const std::string& name, int ranks, int rank, std::uint64_t library, int device,
                                       std::string& why) {
    Descriptor file(open(name.c_str(), O_RDWR | O_CLOEXEC));
    if (ranks < 1 || ranks > most_ranks || rank < 0 || rank >= ranks) {
        why = format("rank %d of %d", rank, ranks);
        return nullptr;
    }
    void* mapped = file.number() < 0 ? MAP_FAILED
                                     : mmap(nullptr, sizeof(Hall), PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
    if (mapped == MAP_FAILED) {
        why = format("the unique id names no meeting: %s", std::strerror(errno));
        return nullptr;
    }
    std::unique_ptr<Meeting> meeting(new Meeting);
    meeting->hall_ = static_cast<Hall*>(mapped);
    meeting->rank_ = rank;
    meeting->ranks_ = ranks;
    Place& place = meeting->hall_->places[rank];
    if (meeting->hall_->magic != magic || place.is_taken.exchange(1) != 0) {
        why = format("rank %d takes part twice, or the unique id is damaged", rank);
        return nullptr;
    }
    place.process = getpid();
    place.ranks = ranks;
    place.library = library;
    place.device = device;
    for (int parity : {0, 1}) {
        meeting->own_[parity] = Descriptor(memfd_create("nccl-data", MFD_CLOEXEC));
        place.data[parity] = meeting->own_[parity].number();
    }
    place.is_open.store(1);
    return meeting;
}

Meeting::~Meeting() { munmap(hall_, sizeof(Hall)); }

bool Meeting::is_complete(std::string& why) {
    for (int rank = 0; rank < ranks_; ++rank)
        if (hall_->places[rank].is_open.load() == 0) return false;
    for (int rank = 0; rank < ranks_; ++rank) {
        const Place& place = hall_->places[rank];
        if (place.ranks != ranks_) why = format("rank %d takes part in %d ranks, not %d", rank, place.ranks, ranks_);
        for (int other = 0; other < rank; ++other) {
            const Place& before = hall_->places[other];
            if (place.process == before.process && place.library == before.library && place.device == before.device)
                why = format("ranks %d and %d have the same GPU", other, rank);
        }
        for (int parity : {0, 1}) {
            Descriptor data(open(path_of(place.process, place.data[parity]).c_str(), O_RDONLY | O_CLOEXEC));
            if (data.number() < 0) why = format("rank %d has ended", rank);
            data_[parity].push_back(std::move(data));
        }
    }
    return true;
}

void Meeting::publish(const std::string& what, const std::vector<unsigned char>& data) {
    ++number_;
    int file = own_[number_ % 2].number();
    for (size_t at = 0; at < data.size();) {
        ssize_t written = pwrite(file, data.data() + at, data.size() - at, off_t(at));
        if (written <= 0) return;  // the others find no operation
        at += size_t(written);
    }
    Place& place = hall_->places[rank_];
    std::snprintf(place.descriptions[number_ % 2].text, sizeof(Description), "%s", what.c_str());
    place.published.store(number_);
}

bool Meeting::is_published() const {
    for (int rank = 0; rank < ranks_; ++rank)
        if (hall_->places[rank].published.load() < number_) return false;
    return true;
}

std::string Meeting::difference() const {
    const char* own = hall_->places[rank_].descriptions[number_ % 2].text;
    for (int rank = 0; rank < ranks_; ++rank) {
        const char* other = hall_->places[rank].descriptions[number_ % 2].text;
        if (std::strcmp(own, other) != 0)
            return format("operation %llu: rank %d runs %s, but rank %d runs %s",
                          static_cast<unsigned long long>(number_), rank_, own, rank, other);
    }
    return "";
}

std::vector<unsigned char> Meeting::data_of(int rank, size_t bytes) const {
    std::vector<unsigned char> data(bytes);
    int file = data_[number_ % 2][size_t(rank)].number();
    for (size_t at = 0; at < bytes;) {
        ssize_t read = pread(file, data.data() + at, bytes - at, off_t(at));
        if (read <= 0) break;  // the descriptions are equal, so the sizes are
        at += size_t(read);
    }
    return data;
}

}  // namespace stand_in
