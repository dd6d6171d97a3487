// Every call is checked once against the capacity of its program, before anything is computed. Kernels rely on it and
// check nothing.
#pragma once

#include "program.h"

namespace archerfish {

// Whether a value is from `min` to `max`. If not, it is written to `error`.
inline bool within(BoundsError& error, Limit limit, int64_t value, int64_t min, int64_t max) {
    if (min <= value && value <= max) return true;
    error = {limit, value, min, max};
    return false;
}

// Whether a step can be assembled from these chunks, for a program of this capacity.
bool can_assemble(const StepAssembly& from, const ProgramCapacity& capacity, BoundsError& error);

// Whether a program of this capacity can run a step: has memory for it, and all tokens, positions, blocks and slots
// that it names.
bool can_run(const StepView& step, const ProgramCapacity& capacity, BoundsError& error);

// Whether drafting can start. Each pass is checked again when it runs; this checks what one pass hands to the next.
bool can_draft(const Drafting& drafting, BoundsError& error);

}  // namespace archerfish
