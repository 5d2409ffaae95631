// Scripted faults and call counts. Every library has its own script.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>

namespace stand_in {

class Script {
public:
    // Initialized from MILLSTREAM_STAND_IN_FAIL, `FUNCTION:NTH:CODE,...`, for programs that tests start.
    Script() {
        const char* text = std::getenv("MILLSTREAM_STAND_IN_FAIL");
        std::string left = text == nullptr ? "" : text;
        while (!left.empty()) {
            std::string fault = left.substr(0, left.find(','));
            left.erase(0, fault.size() + 1);
            size_t first = fault.find(':'), second = fault.find(':', first + 1);
            if (first == std::string::npos || second == std::string::npos) continue;
            fail(fault.substr(0, first), std::strtoull(&fault[first + 1], nullptr, 10), std::atoi(&fault[second + 1]));
        }
    }

    // Makes the `nth` call of a function from now on, 1 being the next, fail with this code.
    void fail(const std::string& function, std::uint64_t nth, int code) {
        Calls& calls = calls_[function];
        calls.faults[calls.made + nth] = code;
    }

    // Counts a call. Returns the code that it must fail with, or 0.
    int call(const std::string& function) {
        Calls& calls = calls_[function];
        auto fault = calls.faults.find(++calls.made);
        return fault == calls.faults.end() ? 0 : fault->second;
    }

    std::uint64_t made(const std::string& function) const {
        auto calls = calls_.find(function);
        return calls == calls_.end() ? 0 : calls->second.made;
    }

private:
    struct Calls {
        std::uint64_t made = 0;
        std::map<std::uint64_t, int> faults;
    };
    std::map<std::string, Calls> calls_;
};

}  // namespace stand_in
