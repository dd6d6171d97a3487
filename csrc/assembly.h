#pragma once

#include "program.h"

namespace archerfish {

// Gathers a step from its chunks. What it points to lies in the assembly's room.
Step assemble(const Assembly& from);

}  // namespace archerfish
