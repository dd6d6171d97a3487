// Threads that run one program together.
//
// Nobody waits for anybody in particular: whoever is there takes the next piece of work, and whoever finishes an
// instruction's last piece opens the next one. A thread that the operating system keeps from running, because a
// neighbour is busy on its core, costs its share of the work and no more.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "program.h"

namespace archerfish {

// A number that only grows, and can be waited for: spinning at first, then giving way to others, then asleep.
class Signal {
 public:
    uint64_t value() const { return value_.load(std::memory_order_acquire); }
    void raise();
    void wait_beyond(uint64_t seen);

 private:
    alignas(64) std::atomic<uint64_t> value_{0};
    std::atomic<int> num_sleeping_{0};
};

class Team {
 public:
    // The calling thread is one of them. Throws where the system has no memory or no threads left.
    explicit Team(int num_threads);
    ~Team();

    void run(const KernelTable& kernels, const Instructions& instructions, const Step& step);

 private:
    // What is being done now. Changed only while nobody works on it: by who finished it, or before it is opened.
    struct Work {
        const KernelTable* kernels = nullptr;
        const Instruction* next = nullptr;
        const Instruction* end = nullptr;
        Step whole = {};
        Step picked = {};  // The same step for instructions that work on some of its rows.
        std::atomic<const Step*> step{nullptr};
        std::atomic<RunUnit> run{nullptr};
        std::atomic<const void*> operands{nullptr};
        std::atomic<int64_t> num_units{0};
        std::atomic<int64_t> num_done{0};
    };

    void help(int thread);
    void end();
    bool work_once(int thread);
    void open_next(int thread);

    // Instructions opened so far (high half) and pieces taken of the last one (low half), in one word: a thread that
    // was away while others went on cannot take a piece of something else by mistake.
    alignas(64) std::atomic<uint64_t> ticket_{0};
    alignas(64) Work work_;
    Signal opened_;  // How often anything was opened: the high half of the ticket, once everybody has counted.
    std::atomic<bool> finished_{true};
    std::atomic<bool> ending_{false};
    std::vector<std::unique_ptr<uint8_t, decltype(&std::free)>> scratch_;
    std::vector<std::thread> threads_;
};

}  // namespace archerfish
