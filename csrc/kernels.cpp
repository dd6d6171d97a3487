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
    table[Operation::embed] = ByRow<EmbedArgs, embed>::kernel;
    table[Operation::add] = ByRow<AddArgs, add>::kernel;
    table[Operation::scale] = ByRow<ScaleArgs, scale>::kernel;
    table[Operation::softcap] = ByRow<SoftcapArgs, softcap>::kernel;
    table[Operation::rms_norm] = ByRow<NormArgs, rms_norm>::kernel;
    table[Operation::layer_norm] = ByRow<NormArgs, layer_norm>::kernel;
    table[Operation::rotate] = ByRow<RotateArgs, rotate>::kernel;
    table[Operation::activate] = ByRow<ActivateArgs, activate>::kernel;
    table[Operation::pack] = ByRow<PackArgs, pack>::kernel;
    table[Operation::linear] = {count_linear, linear};
    table[Operation::write_kv] = ByRow<WriteKvArgs, write_kv>::kernel;
    table[Operation::attend] = {count_attend, attend};
    table[Operation::route] = ByRow<RouteArgs, route>::kernel;
    table[Operation::group] = {count_group, group};
    table[Operation::gather] = ByRow<GatherArgs, gather>::kernel;
    table[Operation::expert_linear] = {count_expert_linear, expert_linear};
    table[Operation::combine] = ByRow<CombineArgs, combine>::kernel;
    table[Operation::draw] = {count_draw, draw};
    table[Operation::select] = ByRow<SelectArgs, select>::kernel;
    table[Operation::scatter] = ByRow<ScatterArgs, scatter>::kernel;
    return table;
}
static_assert(all_kernels().is_complete(), "an operation has no kernel");

extern const KernelTable table;
constexpr KernelTable table = all_kernels();

}  // namespace archerfish::ISA
