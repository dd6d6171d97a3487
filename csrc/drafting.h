#pragma once

#include "program.h"
#include "team.h"

namespace archerfish {

// Runs pass after pass until every chunk has its draft tokens, or one pass is refused.
void draft(Team& team, const KernelTable& kernels, const Drafting& drafting, Refusal& refusal);

}  // namespace archerfish
