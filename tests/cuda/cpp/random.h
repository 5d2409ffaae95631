// Random choices determined by a seed (SplitMix64).
#pragma once

#include <cstdint>

namespace stand_in {

class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed) {}

    std::uint64_t next() {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        return z ^ z >> 31;
    }

    // A number from 0 to `end` - 1.
    std::uint64_t below(std::uint64_t end) { return next() % end; }

private:
    std::uint64_t state_;
};

// The numbers 0 to `count` - 1 (at least one) in one of many orders, without a list of them: an affine map modulo the next
// power of two.
class Order {
public:
    Order(std::uint64_t count, Random& random) : count_(count) {
        while (mask_ < count - 1) mask_ = mask_ * 2 + 1;
        factor_ = random.next() | 1;
        offset_ = random.next();
        // A quarter of the orders is ascending, and a quarter descending.
        std::uint64_t kind = random.below(4);
        if (kind == 0) factor_ = 1, offset_ = 0;
        if (kind == 1) factor_ = ~0ull, offset_ = count - 1;
    }

    // The next number; call it `count` times.
    std::uint64_t next() {
        for (;;) {
            std::uint64_t value = (factor_ * step_++ + offset_) & mask_;
            if (value < count_) return value;
        }
    }

private:
    std::uint64_t count_, mask_ = 0, factor_, offset_, step_ = 0;
};

}  // namespace stand_in
