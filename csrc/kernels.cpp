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
    table.set(Operation::embed, ByRow<EmbedArgs, embed>::kernel);
    table.set(Operation::add, ByRow<AddArgs, add>::kernel);
    table.set(Operation::scale, ByRow<ScaleArgs, scale>::kernel);
    table.set(Operation::softcap, ByRow<SoftcapArgs, softcap>::kernel);
    table.set(Operation::rms_norm, ByRow<NormArgs, rms_norm>::kernel);
    table.set(Operation::layer_norm, ByRow<NormArgs, layer_norm>::kernel);
    table.set(Operation::rotate, ByRow<RotateArgs, rotate>::kernel);
    table.set(Operation::activate, ByRow<ActivateArgs, activate>::kernel);
    table.set(Operation::pack, ByRow<PackArgs, pack>::kernel);
    table.set(Operation::linear, {count_linear, linear});
    table.set(Operation::write_kv, ByRow<WriteKvArgs, write_kv>::kernel);
    table.set(Operation::attend, {count_attend, attend});
    table.set(Operation::route, ByRow<RouteArgs, route>::kernel);
    table.set(Operation::group, {count_group, group});
    table.set(Operation::gather, ByRow<GatherArgs, gather>::kernel);
    table.set(Operation::expert_linear, {count_expert_linear, expert_linear});
    table.set(Operation::combine, ByRow<CombineArgs, combine>::kernel);
    table.set(Operation::draw, {count_draw, draw});
    table.set(Operation::select, ByRow<SelectArgs, select>::kernel);
    table.set(Operation::scatter, ByRow<ScatterArgs, scatter>::kernel);
    return table;
}
static_assert(all_kernels().is_complete(), "an operation has no kernel");

extern const KernelTable table;
constexpr KernelTable table = all_kernels();

}  // namespace archerfish::ISA
