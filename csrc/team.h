// Threads that run one program together. They take pieces of work as they get to them, so that a thread whose core is
// shared with a busy neighbour does less, and the others more; where they wait they spin briefly, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "program.h"

namespace archerfish {

// A number that only grows, and can be waited for.
class Signal {
   public:
    uint64_t value() const { return value_.load(std::memory_order_acquire); }
    void raise_to(uint64_t value);
    void raise();
    void wait_for(uint64_t wanted);

   private:
    void wake();

    alignas(64) std::atomic<uint64_t> value_{0};
    std::atomic<int> num_sleeping_{0};
};

class Team {
   public:
    // The calling thread is one of them.
    explicit Team(int num_threads);
    ~Team();

    void run(const KernelTable& kernels, const Instruction* instructions, int64_t count, const Step& step);

   private:
    struct Job {
        const KernelTable* kernels = nullptr;
        const Instruction* instructions = nullptr;
        int64_t count = 0;
        const Step* step = nullptr;
        uint64_t num_met = 0;  // Meetings before this job.
    };

    void work(int thread);
    void run_job(int thread);
    void meet(uint64_t place);

    const int num_threads_;
    Job job_;
    alignas(64) std::atomic<int64_t> next_unit_{0};
    alignas(64) std::atomic<int> num_arrived_{0};
    Signal met_;    // Instructions that everybody has finished, over all jobs.
    Signal given_;  // Jobs.
    Signal left_;   // Threads that are done with a job, over all jobs.
    std::atomic<bool> ending_{false};
    std::vector<std::unique_ptr<uint8_t[]>> scratch_;
    std::vector<std::thread> threads_;
};

}  // namespace archerfish
