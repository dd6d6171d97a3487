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

constexpr KernelTable all_kernels() {
    KernelTable table = {};
    table[Operation::embed] = ByRow<Embed, embed>::kernel;
    table[Operation::add] = ByRow<Add, add>::kernel;
    table[Operation::scale] = ByRow<Scale, scale>::kernel;
    table[Operation::softcap] = ByRow<Softcap, softcap>::kernel;
    table[Operation::rms_norm] = ByRow<Norm, rms_norm>::kernel;
    table[Operation::layer_norm] = ByRow<Norm, layer_norm>::kernel;
    table[Operation::rotate] = ByRow<Rotate, rotate>::kernel;
    table[Operation::activate] = ByRow<Activate, activate>::kernel;
    table[Operation::pack] = ByRow<Pack, pack>::kernel;
    table[Operation::linear] = {count_linear, linear};
    table[Operation::write_kv] = ByRow<WriteKv, write_kv>::kernel;
    table[Operation::attend] = {count_attend, attend};
    table[Operation::route] = ByRow<Route, route>::kernel;
    table[Operation::group] = {count_group, group};
    table[Operation::gather] = ByRow<Gather, gather>::kernel;
    table[Operation::expert_linear] = {count_expert_linear, expert_linear};
    table[Operation::combine] = ByRow<Combine, combine>::kernel;
    table[Operation::draw] = {count_draw, draw};
    table[Operation::select] = ByRow<Select, select>::kernel;
    table[Operation::spread] = ByRow<Spread, spread>::kernel;
    return table;
}
static_assert(all_kernels().is_complete(), "an operation has no kernel");

extern const KernelTable table;
constexpr KernelTable table = all_kernels();

}  // namespace archerfish::ISA
