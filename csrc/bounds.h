#pragma once

#include "program.h"

namespace archerfish {

// Whether a number is from `least` to `most`; if not, the call is refused.
inline bool within(Refusal& refusal, Limit limit, int64_t given, int64_t least, int64_t most) {
    if (least <= given && given <= most) return true;
    refusal = {limit, given, least, most};
    return false;
}

// Whether a step can be assembled from these chunks, for instructions of this capacity.
bool can_assemble(const Assembly& from, const Capacity& capacity, Refusal& refusal);

// Whether instructions of this capacity can run a step, and have all tokens, positions, blocks and slots that it names.
bool can_run(const Step& step, const Capacity& capacity, Refusal& refusal);

// Whether a draft can be started: its passes check themselves, and this what one hands to the next.
bool can_draft(const Drafting& drafting, Refusal& refusal);

}  // namespace archerfish
