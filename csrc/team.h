// Threads that run one program together.
//
// No thread waits for a particular other one: each takes the next unit of work when it is free, and the thread that
// finishes the last unit of an instruction opens the next instruction. A thread that the operating system suspends,
// because another process is busy on its core, costs its share of the work and no more.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "program.h"

namespace archerfish {

// A counter that threads wait for: spinning at first, then yielding, then asleep.
class Signal {
 public:
    uint64_t value() const { return value_.load(std::memory_order_acquire); }
    void increment();
    void wait_while(uint64_t seen);

 private:
    alignas(64) std::atomic<uint64_t> value_{0};
    std::atomic<int> num_sleeping_{0};
};

class Team {
 public:
    // The thread that calls `run` is one of them. Throws if the system has no memory or no threads left.
    explicit Team(int num_threads);
    ~Team();

    void run(const KernelTable& kernels, const Instructions& instructions, const StepView& step);

 private:
    // The current instruction. Changed only while no thread can take a unit: by the thread that finished it, or before
    // it is opened.
    struct Work {
        const KernelTable* kernels = nullptr;
        const Instruction* next = nullptr;
        const Instruction* end = nullptr;
        StepView all_rows = {};
        StepView selected = {};  // The same step, for instructions that work on the rows at its logit indices.
        std::atomic<const StepView*> step{nullptr};
        std::atomic<RunUnit> run{nullptr};
        std::atomic<const void*> arguments{nullptr};
        std::atomic<int64_t> num_units{0};
        std::atomic<int64_t> num_done{0};
    };

    void work(int thread);
    void stop();
    bool run_unit(int thread);
    void open_next(int thread);
    Scratch scratch(int thread) const { return {scratch_[thread].get(), SCRATCH_BYTES}; }

    // The number of instructions opened (high half) and of units taken of the last one (low half), in one word: a
    // thread that was suspended meanwhile cannot take a unit of another instruction by mistake.
    alignas(64) std::atomic<uint64_t> ticket_{0};
    alignas(64) Work work_;
    Signal opened_;  // The number of instructions opened: the high half of the ticket, once all threads have counted.
    std::atomic<bool> finished_{true};
    std::atomic<bool> stopping_{false};
    std::vector<std::unique_ptr<uint8_t, decltype(&std::free)>> scratch_;
    std::vector<std::thread> threads_;
};

}  // namespace archerfish
