#pragma once

#include "program.h"
#include "team.h"

namespace archerfish {

// Runs pass after pass until every chunk has its draft tokens, or a pass is rejected.
void draft(Team& team, const KernelTable& kernels, const Drafting& drafting, BoundsError& error);

}  // namespace archerfish
