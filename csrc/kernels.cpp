// All kernels for one instruction set. Compiled once for each, with ISA naming it; nothing here knows threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "lanes.h"
#include "program.h"
#ifdef ARCHERFISH_TILES
#include "tiles.h"
#endif

namespace archerfish {
namespace ISA {
namespace {

#include "rows.inc"
#include "linear.inc"
#include "cache.inc"
#include "attention_tiles.inc"
#include "attention.inc"
#include "experts.inc"
#include "draw.inc"

}  // namespace

extern const KernelTable table;
const KernelTable table = {{
    ByRow<Embed, embed>::kernel,
    ByRow<Add, add>::kernel,
    ByRow<Scale, scale>::kernel,
    ByRow<Softcap, softcap>::kernel,
    ByRow<Norm, rms_norm>::kernel,
    ByRow<Norm, layer_norm>::kernel,
    ByRow<Rotate, rotate>::kernel,
    ByRow<Activate, activate>::kernel,
    ByRow<Pack, pack>::kernel,
    {count_linear, linear},
    ByRow<WriteKv, write_kv>::kernel,
    {count_attend, attend},
    ByRow<Route, route>::kernel,
    {count_group, group},
    ByRow<Gather, gather>::kernel,
    {count_expert_linear, expert_linear},
    ByRow<Combine, combine>::kernel,
    {count_draw, draw},
    ByRow<Select, select>::kernel,
    ByRow<Spread, spread>::kernel,
}};

}  // namespace ISA
}  // namespace archerfish
