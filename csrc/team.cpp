#include "team.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <new>

namespace archerfish {
namespace {

// How long a thread spins and then yields before it sleeps. Between two instructions there is next to nothing to wait
// for, between two steps of a small model a fraction of a millisecond. Waking up takes longer than either.
constexpr int64_t SPIN_NANOSECONDS = 20'000;
constexpr int64_t YIELD_NANOSECONDS = 1'000'000;
constexpr int PAUSES_PER_CHECK = 32;
constexpr uint64_t UNIT_BITS = 32;  // Bits of the ticket that count units.
constexpr uint64_t INSTRUCTION_MASK = ~0ull >> UNIT_BITS;

int64_t now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

}  // namespace

void Signal::increment() {
    value_.fetch_add(1, std::memory_order_seq_cst);
    // A thread that goes to sleep counts itself before it reads the value, and this one does the opposite: one of the
    // two notices the other.
    if (num_sleeping_.load(std::memory_order_seq_cst))
        syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&value_), FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr,
                0);
}

void Signal::wait_while(uint64_t seen) {
    int64_t started = 0;
    for (;;) {
        for (int i = 0; i < PAUSES_PER_CHECK; ++i) {
            if (value() != seen) return;
            _mm_pause();
        }
        int64_t time = now();
        if (started == 0) started = time;
        if (time - started < SPIN_NANOSECONDS) continue;
        if (time - started < YIELD_NANOSECONDS) {
            sched_yield();
            continue;
        }
        num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
        // The futex compares the low 32 bits, which come first on x86.
        if (value_.load(std::memory_order_seq_cst) == seen)
            syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&value_), FUTEX_WAIT_PRIVATE,
                    static_cast<uint32_t>(seen), nullptr, nullptr, 0);
        num_sleeping_.fetch_sub(1, std::memory_order_relaxed);
    }
}

Team::Team(int num_threads) {
    for (int i = 0; i < num_threads; ++i) {
        scratch_.emplace_back(static_cast<uint8_t*>(std::aligned_alloc(SCRATCH_ALIGNMENT, SCRATCH_BYTES)), &std::free);
        if (!scratch_.back()) throw std::bad_alloc();
    }
    try {
        for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { work(i); });
    } catch (...) {
        stop();  // The threads that were started.
        throw;
    }
}

Team::~Team() { stop(); }

void Team::stop() {
    stopping_ = true;
    opened_.increment();
    for (auto& thread : threads_) thread.join();
    threads_.clear();
}

// Called by one thread at a time, when all units of the last instruction are done.
void Team::open_next(int thread) {
    // Close the ticket, so that no unit can be taken while the work is changed.
    uint64_t number = ticket_.load(std::memory_order_relaxed) >> UNIT_BITS;
    ticket_.store(number << UNIT_BITS | INSTRUCTION_MASK, std::memory_order_seq_cst);
    int64_t units = 0;
    while (work_.next != work_.end && units == 0) {
        const Instruction& next = *work_.next++;
        const StepView& step = next.selected ? work_.selected : work_.all_rows;
        const Kernel& kernel = (*work_.kernels)[next.operation];
        units = kernel.count(next.arguments, step);
        if (units == 1) {
            // Run it here: waking other threads takes longer than most single units.
            kernel.run(next.arguments, step, 0, scratch(thread));
            units = 0;
        }
        work_.run.store(kernel.run, std::memory_order_relaxed);
        work_.arguments.store(next.arguments, std::memory_order_relaxed);
        work_.step.store(&step, std::memory_order_relaxed);
    }
    work_.num_done.store(0, std::memory_order_relaxed);
    work_.num_units.store(units, std::memory_order_relaxed);
    // Wraps around to 0.
    number = (number + 1) & INSTRUCTION_MASK;
    ticket_.store(number << UNIT_BITS, std::memory_order_release);
    if (units == 0) finished_.store(true, std::memory_order_release);
    opened_.increment();  // Last, because `run` returns when it equals the ticket. Other threads may already have
                          // opened more.
}

// Takes and runs one unit. Returns false if none was left.
bool Team::run_unit(int thread) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    int64_t unit = static_cast<int64_t>(ticket & ((1ull << UNIT_BITS) - 1));
    int64_t units = work_.num_units.load(std::memory_order_acquire);
    if (unit >= units) return false;
    // Read before the ticket is taken: if other threads have opened another instruction meanwhile, taking it fails.
    RunUnit run = work_.run.load(std::memory_order_relaxed);
    const void* arguments = work_.arguments.load(std::memory_order_relaxed);
    const StepView* step = work_.step.load(std::memory_order_relaxed);
    if (!ticket_.compare_exchange_strong(ticket, ticket + 1, std::memory_order_acq_rel)) return true;
    run(arguments, *step, unit, scratch(thread));
    if (work_.num_done.fetch_add(1, std::memory_order_acq_rel) + 1 == units) open_next(thread);
    return true;
}

void Team::work(int thread) {
    for (;;) {
        uint64_t seen = opened_.value();
        if (stopping_) return;
        while (run_unit(thread)) {
        }
        opened_.wait_while(seen);
    }
}

void Team::run(const KernelTable& kernels, const Instructions& instructions, const StepView& step) {
    work_.kernels = &kernels;
    work_.next = instructions.first;
    work_.end = instructions.first + instructions.count;
    work_.all_rows = work_.selected = step;
    work_.all_rows.num_threads = work_.selected.num_threads = static_cast<int64_t>(scratch_.size());
    work_.selected.num_rows = step.num_logits;
    finished_.store(false, std::memory_order_relaxed);
    open_next(0);
    for (;;) {
        uint64_t seen = opened_.value();
        while (run_unit(0)) {
        }
        bool finished = finished_.load(std::memory_order_acquire);
        // All threads have left open_next, so nothing of this program is touched any more.
        if (finished && (opened_.value() & INSTRUCTION_MASK) == ticket_.load(std::memory_order_relaxed) >> UNIT_BITS)
            return;
        opened_.wait_while(seen);
    }
}

}  // namespace archerfish
