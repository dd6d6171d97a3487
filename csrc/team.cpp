#include "team.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace archerfish {
namespace {

// Long enough for the gap between two instructions, or between two steps of a small model; short enough to be nothing.
constexpr int64_t SPIN_NANOSECONDS = 50'000;
constexpr int PAUSES_PER_LOOK = 64;

int64_t now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

}  // namespace

void Signal::wake() {
    // Who goes to sleep counts itself first and looks at the value afterwards; we do it the other way round.
    if (num_sleeping_.load(std::memory_order_seq_cst))
        syscall(SYS_futex, (const uint32_t*)&value_, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0);
}

void Signal::raise_to(uint64_t value) {
    value_.store(value, std::memory_order_seq_cst);
    wake();
}

void Signal::raise() {
    value_.fetch_add(1, std::memory_order_seq_cst);
    wake();
}

void Signal::wait_for(uint64_t wanted) {
    int64_t deadline = 0;
    for (;;) {
        for (int i = 0; i < PAUSES_PER_LOOK; ++i) {
            if (value() >= wanted) return;
            _mm_pause();
        }
        int64_t time = now();
        if (deadline == 0) deadline = time + SPIN_NANOSECONDS;
        if (time < deadline) continue;
        num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
        uint64_t seen = value_.load(std::memory_order_seq_cst);
        // The kernel compares 32 bits: values that differ there have changed. (It is the low half: x86 only.)
        if (seen < wanted)
            syscall(SYS_futex, (const uint32_t*)&value_, FUTEX_WAIT_PRIVATE, (uint32_t)seen, nullptr, nullptr, 0);
        num_sleeping_.fetch_sub(1, std::memory_order_relaxed);
    }
}

Team::Team(int num_threads) : num_threads_(num_threads) {
    for (int i = 0; i < num_threads; ++i) scratch_.emplace_back(new uint8_t[SCRATCH_BYTES]);
    for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { work(i); });
}

Team::~Team() {
    ending_ = true;
    given_.raise();
    for (auto& thread : threads_) thread.join();
}

void Team::meet(uint64_t place) {
    if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < num_threads_) return met_.wait_for(place);
    num_arrived_.store(0, std::memory_order_relaxed);
    next_unit_.store(0, std::memory_order_relaxed);
    met_.raise_to(place);
}

void Team::run_job(int thread) {
    const Job job = job_;
    for (int64_t i = 0; i < job.count; ++i) {
        const Instruction& instruction = job.instructions[i];
        const Kernel& kernel = job.kernels->kernels[(int)instruction.operation];
        int64_t units = kernel.count(instruction.operands, *job.step);
        for (;;) {
            int64_t unit = next_unit_.fetch_add(1, std::memory_order_relaxed);
            if (unit >= units) break;
            kernel.run(instruction.operands, *job.step, unit, scratch_[thread].get());
        }
        meet(job.num_met + i + 1);
    }
}

void Team::work(int thread) {
    for (uint64_t job = 1;; ++job) {
        given_.wait_for(job);
        if (ending_) return;
        run_job(thread);
        left_.raise();
    }
}

void Team::run(const KernelTable& kernels, const Instruction* instructions, int64_t count, const Step& step) {
    // Everybody has left the job before: a thread may still be on its way out of the last meeting.
    left_.wait_for(given_.value() * (num_threads_ - 1));
    job_ = {&kernels, instructions, count, &step, met_.value()};
    given_.raise();
    run_job(0);
}

}  // namespace archerfish
