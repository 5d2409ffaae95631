#include "blocks.h"

#include "segfaults.h"

namespace stand_in {

thread_local Multiprocessor* Multiprocessor::running = nullptr;

Failure Multiprocessor::run(const Launch& launch, std::uint64_t seed) {
    random_ = Random(seed);
    launch_ = &launch;
    failure_ = {};
    block_.dimensions = launch.dimensions;
    block_.grid = launch.grid;
    block_.shared_bytes = shared_end_ - (launch.shared_bytes + 15) / 16 * 16;
    block_.calls = &calls;
    block_.multiprocessor = this;
    count_ = launch.dimensions.x * launch.dimensions.y * launch.dimensions.z;
    std::uint64_t blocks = std::uint64_t(launch.grid.x) * launch.grid.y * launch.grid.z;
    Order order(blocks, random_);
    running = this;
    for (std::uint64_t i = 0; i < blocks && failure_.code == CUDA_SUCCESS; ++i) run_block(order.next());
    running = nullptr;
    if (failure_.code != CUDA_SUCCESS) fibers_.reset();
    forget_copies();
    return failure_;
}

// Forgets the copies of a block that no thread has waited for.
void Multiprocessor::forget_copies() {
    for (unsigned thread = 0; has_copies_ && thread < count_; ++thread) copies_[thread].begun.clear();
    has_copies_ = false;
}

void Multiprocessor::run_block(std::uint64_t index) {
    const Launch& launch = *launch_;
    block_.index = {unsigned(index % launch.grid.x), unsigned(index / launch.grid.x % launch.grid.y),
                    unsigned(index / launch.grid.x / launch.grid.y)};
    std::memset(block_.shared_bytes, poison, launch.shared_bytes);
    std::memset(launch.static_shared, poison, launch.static_bytes);
    returned_ = 0;
    barrier_arrived_ = barrier_true_ = 0;
    for (unsigned warp = 0; warp * 32 < count_; ++warp) warps_[warp].arrived = 0;
    forget_copies();
    eager_lanes_ = random_.below(4) != 0;
    fill_queue(unstarted);
    resume_next(&outside_);
    if (fault_.signal != 0) explain_fault();
}

// Queues all threads, warp by warp or scattered.
void Multiprocessor::fill_queue(State from) {
    head_ = tail_ = queue_room;
    std::memset(state_, from, count_);
    if (random_.below(4) != 0 && count_ % 32 == 0) {
        Order warps(count_ / 32, random_), lanes(32, random_);
        unsigned order[32];
        for (unsigned& lane : order) lane = unsigned(lanes.next());
        for (unsigned i = 0; i < count_ / 32; ++i) {
            unsigned warp = unsigned(warps.next());
            for (unsigned lane : order) push(warp * 32 + lane);
        }
    } else {
        Order threads(count_, random_);
        for (unsigned i = 0; i < count_; ++i) push(unsigned(threads.next()));
    }
}

// The loop of every fiber: runs the thread for which it was resumed, then threads that have not started.
void Multiprocessor::fiber_main() {
    Multiprocessor& multiprocessor = of_this_thread();
    Fiber* self = multiprocessor.fiber_[on_host::this_thread()->number];
    for (;;) {
        const Launch& launch = *multiprocessor.launch_;
        unsigned number = self->next;
        do {
            multiprocessor.start(self, number);
            launch.kernel->run(launch.args);
            multiprocessor.state_[number] = returned;
            ++multiprocessor.returned_;
        } while (multiprocessor.next_in_place(self, number));
    }
}

void Multiprocessor::start(Fiber* self, unsigned number) {
    const auto& dimensions = block_.dimensions;
    state_[number] = ready;
    fiber_[number] = self;
    self->thread->number = number;
    self->thread->index = {number, 0, 0};
    if (number >= dimensions.x)
        self->thread->index = {number % dimensions.x, number / dimensions.x % dimensions.y,
                               number / dimensions.x / dimensions.y};
}

// Selects the next thread for a fiber whose thread has returned. If that thread has its own fiber, returns this fiber to
// the pool, and returns once it is reused.
bool Multiprocessor::next_in_place(Fiber* self, unsigned& number) {
    if (head_ != tail_ && state_[queue_[head_ % queue_room]] == unstarted) {
        number = queue_[head_++ % queue_room];
        return true;
    }
    fibers_.release(self);
    resume_next(&self->stack_pointer);
    return false;
}

Fiber* Multiprocessor::begin_fiber(unsigned number) {
    Fiber* fiber = fibers_.acquire();
    fiber->next = number;
    fiber->thread->number = number;
    fiber->thread->block = &block_;
    fiber_[number] = fiber;
    return fiber;
}

void Multiprocessor::resume_next(void** save) {
    if (head_ == tail_) {
        if (returned_ < count_) stuck();
        stand_in_switch(save, outside_);
        return;
    }
    unsigned number = queue_[head_++ % queue_room];
    if (state_[number] == unstarted) {
        stand_in_switch(save, begin_fiber(number)->stack_pointer);
        return;
    }
    state_[number] = ready;
    // Stacks of other threads are rarely in L1: prefetch that of the next thread.
    auto* coming = static_cast<char*>(suspended_[queue_[head_ % queue_room]]);
    __builtin_prefetch(coming);
    __builtin_prefetch(coming + 64);
    __builtin_prefetch(on_host::thread_at(coming));
    // The last thread to reach a barrier may be the first to continue.
    if (save != &suspended_[number]) stand_in_switch(save, suspended_[number]);
}

void Multiprocessor::wait(unsigned number, State state) {
    state_[number] = state;
    resume_next(&suspended_[number]);
}

int Multiprocessor::barrier(on_host::Barrier kind, int predicate, on_host::Place place) {
    Multiprocessor& self = of_this_thread();
    unsigned number = on_host::this_thread()->number;
    if (self.barrier_arrived_ == 0) {
        self.barrier_kind_ = kind;
        self.barrier_place_ = place;
    } else if (kind != self.barrier_kind_ || place.line != self.barrier_place_.line) {
        self.end_apart(number, place);
    }
    self.barrier_true_ += predicate != 0;
    if (++self.barrier_arrived_ == self.count_) {
        unsigned holds = self.barrier_true_;
        self.barrier_result_ = kind == on_host::or_barrier    ? holds != 0
                               : kind == on_host::and_barrier ? holds == self.count_
                                                              : int(holds);
        self.barrier_arrived_ = self.barrier_true_ = 0;
        self.fill_queue(at_barrier);
    }
    self.wait(number, at_barrier);
    // No thread can pass the next barrier before all have read this one's result.
    return self.barrier_result_;
}

on_host::u64 Multiprocessor::exchange(on_host::Exchange kind, unsigned mask, on_host::u64 value, unsigned source,
                                      on_host::Place place) {
    Multiprocessor& self = of_this_thread();
    unsigned number = on_host::this_thread()->number, lane = number % 32;
    if (!(mask >> lane & 1)) self.end_unnamed(number, lane, mask, place);
    if (kind == on_host::shuffle && !(mask >> source & 1)) self.end_unnamed(number, source, mask, place);
    Warp& warp = self.warps_[number / 32];
    warp.lanes[lane] = {value, 0, place, mask, kind, source};
    warp.arrived |= 1u << lane;
    if ((warp.arrived & mask) == mask) {
        self.complete(warp, mask, lane, number - lane);
    } else {
        self.wait(number, in_exchange);
    }
    // Stored per lane: other lanes may complete another exchange before this one continues.
    return warp.lanes[lane].taken;
}

// Completes an exchange once all lanes of `mask` have arrived, `last` being the last: each gets its result and continues.
void Multiprocessor::complete(Warp& warp, unsigned mask, unsigned last, unsigned first_thread) {
    on_host::Exchange kind = warp.lanes[last].kind;
    unsigned voted = 0;
    for (unsigned left = mask; left != 0; left &= left - 1) {
        unsigned lane = unsigned(__builtin_ctz(left));
        const Lane& it = warp.lanes[lane];
        if (it.kind != kind || it.mask != mask) end_exchange_apart(warp, first_thread, last, lane);
        voted |= unsigned(it.given != 0) << lane;
    }
    for (unsigned left = mask; left != 0; left &= left - 1) {
        unsigned lane = unsigned(__builtin_ctz(left));
        Lane& it = warp.lanes[lane];
        switch (kind) {
            case on_host::shuffle: it.taken = warp.lanes[it.source].given; break;
            case on_host::ballot: it.taken = voted; break;
            case on_host::match:
                for (unsigned others = mask; others != 0; others &= others - 1) {
                    unsigned other = unsigned(__builtin_ctz(others));
                    it.taken |= on_host::u64(warp.lanes[other].given == it.given) << other;
                }
                break;
            case on_host::sync_warp: break;
        }
        if (lane == last) continue;
        if (eager_lanes_) push_front(first_thread + lane);
        else push(first_thread + lane);
    }
    warp.arrived &= ~mask;
}

void Multiprocessor::begin_copy(void* to, const void* from, unsigned bytes, on_host::Place place) {
    Multiprocessor& self = of_this_thread();
    bool is_aligned = (reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) % bytes == 0;
    if (!is_aligned) fail(CUDA_ERROR_MISALIGNED_ADDRESS, "an asynchronous copy is not aligned to its size", place);
    std::memset(to, poison, bytes);
    Copies& copies = self.copies_[on_host::this_thread()->number];
    Copy copy{to, from, bytes, copies.groups, self.random_.below(2) == 0, {}};
    if (copy.is_taken) std::memcpy(copy.taken, from, bytes);
    copies.begun.push_back(copy);
    self.has_copies_ = true;
}

void Multiprocessor::end_group() { ++of_this_thread().copies_[on_host::this_thread()->number].groups; }

void Multiprocessor::wait_for_groups(unsigned latest) {
    Copies& copies = of_this_thread().copies_[on_host::this_thread()->number];
    size_t left = 0;
    for (const Copy& copy : copies.begun) {
        if (copy.group + latest < copies.groups) {
            std::memcpy(copy.to, copy.is_taken ? copy.taken : copy.from, copy.bytes);
        } else {
            copies.begun[left++] = copy;
        }
    }
    copies.begun.resize(left);
}

void Multiprocessor::stuck() {
    for (unsigned number = 0; number < count_; ++number) {
        if (state_[number] != in_exchange) continue;
        const Warp& warp = warps_[number / 32];
        const Lane& lane = warp.lanes[number % 32];
        end(CUDA_ERROR_LAUNCH_FAILED,
            format("%s waits at %s:%d with mask %08x for lanes %08x, which never come", where(number).c_str(),
                   lane.place.file, lane.place.line, lane.mask, lane.mask & ~warp.arrived));
    }
    unsigned missing = 0;
    while (missing < count_ && state_[missing] == at_barrier) ++missing;
    end(CUDA_ERROR_LAUNCH_FAILED, format("the barrier at %s:%d was reached by %u of %u threads; %s returned before it",
                                         barrier_place_.file, barrier_place_.line, barrier_arrived_, count_,
                                         where(missing).c_str()));
}

void Multiprocessor::end_apart(unsigned thread, on_host::Place place) {
    end(CUDA_ERROR_LAUNCH_FAILED, format("%s came to the barrier at %s:%d while others wait at that at %s:%d",
                                         where(thread).c_str(), place.file, place.line, barrier_place_.file,
                                         barrier_place_.line));
}

void Multiprocessor::end_unnamed(unsigned thread, unsigned lane, unsigned mask, on_host::Place place) {
    end(CUDA_ERROR_LAUNCH_FAILED, format("%s at %s:%d: the mask %08x does not name lane %u, %s", where(thread).c_str(),
                                         place.file, place.line, mask, lane,
                                         lane == thread % 32 ? "its own" : "whose value it wants"));
}

void Multiprocessor::end_exchange_apart(const Warp& warp, unsigned first_thread, unsigned lane, unsigned other) {
    const Lane &one = warp.lanes[lane], &two = warp.lanes[other];
    end(CUDA_ERROR_LAUNCH_FAILED,
        format("%s is at %s:%d with mask %08x, %s at %s:%d with mask %08x", where(first_thread + lane).c_str(),
               one.place.file, one.place.line, one.mask, where(first_thread + other).c_str(), two.place.file,
               two.place.line, two.mask));
}

std::string Multiprocessor::where(unsigned number) const {
    const auto& d = block_.dimensions;
    return format("thread (%u, %u, %u) of block (%u, %u, %u) of %s", number % d.x, number / d.x % d.y,
                  number / d.x / d.y, block_.index.x, block_.index.y, block_.index.z, launch_->name);
}

void Multiprocessor::end(CUresult code, std::string why) {
    failure_ = {code, std::move(why)};
    leave();
}

void Multiprocessor::explain_fault() {
    failure_ = explain(fault_, is_beyond_shared(fault_.address));
    failure_.why += " by " + where(fault_.thread);
    fault_ = {};
}

void Multiprocessor::fail(int code, const char* why, on_host::Place place) {
    Multiprocessor& self = of_this_thread();
    self.end(code, format("%s at %s:%d by %s", why, place.file, place.line,
                          self.where(on_host::this_thread()->number).c_str()));
}

}  // namespace stand_in
