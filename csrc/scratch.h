// The memory that a kernel works in: a bump allocator over a buffer of its thread.
#pragma once

#include <cstdint>

namespace archerfish {

constexpr int64_t SCRATCH_BYTES = 8 << 20;  // Of each thread. Pages that are never touched take no memory.
constexpr int64_t SCRATCH_ALIGNMENT = 64;   // A cache line.

// Says how much was missing and ends the process: memory past the end belongs to something else.
[[noreturn, gnu::cold]] void scratch_exhausted(int64_t num_bytes, int64_t num_left);

// Passed by value: what a callee takes is free again when it returns.
class Scratch {
 public:
    Scratch(uint8_t* begin, int64_t num_bytes) : next_(begin), end_(begin + num_bytes) {}

    // Uninitialized memory for `count` values, aligned to a cache line.
    template <typename T>
    T* take(int64_t count) {
        int64_t num_bytes =
            (count * static_cast<int64_t>(sizeof(T)) + SCRATCH_ALIGNMENT - 1) / SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT;
        if (__builtin_expect(num_bytes > end_ - next_, 0)) scratch_exhausted(num_bytes, end_ - next_);
        T* taken = reinterpret_cast<T*>(next_);
        next_ += num_bytes;
        return taken;
    }

 private:
    uint8_t* next_;
    uint8_t* end_;
};

}  // namespace archerfish
