#pragma once

#include "program.h"
#include "team.h"

namespace archerfish {

// Runs pass after pass until everybody has the guesses that they wanted, or one is refused.
void draft(Team& team, const KernelTable& kernels, const Drafting& drafting, Refusal& refusal);

}  // namespace archerfish
