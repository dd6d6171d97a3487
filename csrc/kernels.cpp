// All kernels for one instruction set. Compiled once for each, with ISA naming it; nothing here knows threads.
#include "attention.h"
#include "cache.h"
#include "draw.h"
#include "embed.h"
#include "experts.h"
#include "linear.h"
#include "program.h"
#include "rows.h"

namespace archerfish::ISA {

extern const KernelTable table;
const KernelTable table = {{
    ByRow<Embed, embed>::kernel,      ByRow<Add, add>::kernel,
    ByRow<Scale, scale>::kernel,      ByRow<Softcap, softcap>::kernel,
    ByRow<Norm, rms_norm>::kernel,    ByRow<Norm, layer_norm>::kernel,
    ByRow<Rotate, rotate>::kernel,    ByRow<Activate, activate>::kernel,
    ByRow<Pack, pack>::kernel,        {count_linear, linear},
    ByRow<WriteKv, write_kv>::kernel, {count_attend, attend},
    ByRow<Route, route>::kernel,      {count_group, group},
    ByRow<Gather, gather>::kernel,    {count_expert_linear, expert_linear},
    ByRow<Combine, combine>::kernel,  {count_draw, draw},
    ByRow<Select, select>::kernel,    ByRow<Spread, spread>::kernel,
}};

}  // namespace archerfish::ISA
