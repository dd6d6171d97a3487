#pragma once

#include "program.h"
#include "team.h"

namespace archerfish {

// Gathers a step from its chunks, which can_assemble has seen. What it points to lies in the assembly's memory.
Step assemble(const Assembly& from);

// Runs the step that the chunks come to. Returns its number of rows; 0 if it was refused.
int64_t run_chunks(Team& team, const KernelTable& kernels, const Instructions& instructions, const Assembly& chunks,
                   Refusal& refusal);

}  // namespace archerfish
