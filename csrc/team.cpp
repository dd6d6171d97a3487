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

// Between two instructions there is next to nothing to wait for, between two steps of a small model a fraction of a
// millisecond. Waking up takes longer than either.
constexpr int64_t SPIN_NANOSECONDS = 20'000;
constexpr int64_t YIELD_NANOSECONDS = 1'000'000;
constexpr int PAUSES_PER_LOOK = 32;
constexpr uint64_t PIECES = 32;  // Bits of the ticket that count them.
constexpr uint64_t NUMBERS = ~0ull >> PIECES;

int64_t now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

}  // namespace

void Signal::raise() {
    value_.fetch_add(1, std::memory_order_seq_cst);
    // Who goes to sleep counts itself first and looks at the value afterwards; we do it the other way round.
    if (num_sleeping_.load(std::memory_order_seq_cst))
        syscall(SYS_futex, (const uint32_t*)&value_, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0);
}

void Signal::wait_beyond(uint64_t seen) {
    int64_t started = 0;
    for (;;) {
        for (int i = 0; i < PAUSES_PER_LOOK; ++i) {
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
        // The kernel compares the low 32 bits, which are the first ones on x86.
        if (value_.load(std::memory_order_seq_cst) == seen)
            syscall(SYS_futex, (const uint32_t*)&value_, FUTEX_WAIT_PRIVATE, (uint32_t)seen, nullptr, nullptr, 0);
        num_sleeping_.fetch_sub(1, std::memory_order_relaxed);
    }
}

Team::Team(int num_threads) {
    for (int i = 0; i < num_threads; ++i) {
        scratch_.emplace_back((uint8_t*)std::aligned_alloc(64, SCRATCH_BYTES), &std::free);
        if (!scratch_.back()) throw std::bad_alloc();
    }
    try {
        for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { help(i); });
    } catch (...) {
        end();  // Those that were started.
        throw;
    }
}

Team::~Team() { end(); }

void Team::end() {
    ending_ = true;
    opened_.raise();
    for (auto& thread : threads_) thread.join();
    threads_.clear();
}

// Only ever called by one thread, when all pieces of the last instruction are done.
void Team::open_next(int thread) {
    // Closed first: nothing can be taken while what there is to take is being changed.
    uint64_t number = ticket_.load(std::memory_order_relaxed) >> PIECES;
    ticket_.store(number << PIECES | NUMBERS, std::memory_order_seq_cst);
    int64_t units = 0;
    while (work_.next != work_.end && units == 0) {
        const Instruction& next = *work_.next++;
        const Step& step = next.selected ? work_.picked : work_.whole;
        const Kernel& kernel = (*work_.kernels)[next.operation];
        units = kernel.count(next.operands, step);
        if (units == 1) {
            // Done at once: to tell the others takes longer than most of these.
            kernel.run(next.operands, step, 0, scratch_[thread].get());
            units = 0;
        }
        work_.run.store(kernel.run, std::memory_order_relaxed);
        work_.operands.store(next.operands, std::memory_order_relaxed);
        work_.step.store(&step, std::memory_order_relaxed);
    }
    work_.num_done.store(0, std::memory_order_relaxed);
    work_.num_units.store(units, std::memory_order_relaxed);
    // The number starts again at 0 when the word is full.
    number = (number + 1) & NUMBERS;
    ticket_.store(number << PIECES, std::memory_order_release);
    if (units == 0) finished_.store(true, std::memory_order_release);
    opened_.raise();  // Last of all. Others may be ahead already: it counts, in whatever order.
}

// Take a piece of what is open and do it. False if there was none left to take.
bool Team::work_once(int thread) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    int64_t unit = (int64_t)(ticket & ((1ull << PIECES) - 1));
    int64_t units = work_.num_units.load(std::memory_order_acquire);
    if (unit >= units) return false;
    // Read before the ticket is taken: should others have gone on meanwhile, it cannot be taken.
    RunUnit run = work_.run.load(std::memory_order_relaxed);
    const void* operands = work_.operands.load(std::memory_order_relaxed);
    const Step* step = work_.step.load(std::memory_order_relaxed);
    if (!ticket_.compare_exchange_strong(ticket, ticket + 1, std::memory_order_acq_rel)) return true;
    run(operands, *step, unit, scratch_[thread].get());
    if (work_.num_done.fetch_add(1, std::memory_order_acq_rel) + 1 == units) open_next(thread);
    return true;
}

void Team::help(int thread) {
    for (;;) {
        uint64_t seen = opened_.value();
        if (ending_) return;
        while (work_once(thread)) {
        }
        opened_.wait_beyond(seen);
    }
}

void Team::run(const KernelTable& kernels, const Instructions& instructions, const Step& step) {
    work_.kernels = &kernels;
    work_.next = instructions.first;
    work_.end = instructions.first + instructions.count;
    work_.whole = work_.picked = step;
    work_.whole.num_threads = work_.picked.num_threads = (int64_t)scratch_.size();
    work_.picked.num_rows = step.num_picked;
    finished_.store(false, std::memory_order_relaxed);
    open_next(0);
    for (;;) {
        uint64_t seen = opened_.value();
        while (work_once(0)) {
        }
        bool finished = finished_.load(std::memory_order_acquire);
        // Whoever opened anything is out of open_next: nothing of this program will be touched any more.
        if (finished && (opened_.value() & NUMBERS) == ticket_.load(std::memory_order_relaxed) >> PIECES) return;
        opened_.wait_beyond(seen);
    }
}

}  // namespace archerfish
