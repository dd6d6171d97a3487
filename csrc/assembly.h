#pragma once

#include "program.h"
#include "team.h"

namespace archerfish {

// Assembles a step from chunks that can_assemble has checked. It points to the buffers of the assembly.
StepView assemble(const StepAssembly& from);

// Assembles and runs a step. Returns its number of rows, 0 if it was rejected.
int64_t run_chunks(Team& team, const KernelTable& kernels, const Instructions& instructions, const StepAssembly& chunks,
                   BoundsError& error);

}  // namespace archerfish
