#include "assembly.h"

#include <algorithm>

#include "bounds.h"

namespace archerfish {

StepView assemble(const StepAssembly& from) {
    const Chunk* chunks = from.chunks;
    int64_t longest = 0, num_rows = 0, num_logits = 0;
    for (int64_t c = 0; c < from.num_chunks; ++c) longest = std::max(longest, chunks[c].start + chunks[c].length);
    int64_t width = (longest + from.block_size - 1) / from.block_size;
    from.query_starts[0] = 0;
    for (int64_t c = 0; c < from.num_chunks; ++c) {
        const Chunk& chunk = chunks[c];
        for (int64_t g = 0; g < from.num_kv_groups; ++g) {
            const int32_t* table = from.row_tables[g] + chunk.row * from.blocks_per_row;
            std::copy(table, table + width, from.tables[g] + c * width);
            for (int64_t i = 0; i < chunk.length; ++i) {
                int64_t position = chunk.start + i;
                int64_t block = table[position / from.block_size];
                from.slots[g][num_rows + i] = block * from.block_size + position % from.block_size;
            }
        }
        for (int64_t i = 0; i < chunk.length; ++i, ++num_rows) {
            bool is_in_tree = from.tree_depths && from.tree_depths[num_rows] >= 0;
            from.positions[num_rows] = chunk.start + (is_in_tree ? from.tree_depths[num_rows] : i);
            from.tokens[num_rows] = from.row_tokens[chunk.row * from.tokens_per_row + chunk.start + i];
        }
        from.query_starts[c + 1] = static_cast<int32_t>(num_rows);
        from.ends[c] = static_cast<int32_t>(chunk.start + chunk.length);
        for (int64_t i = num_rows - chunk.num_logits; i < num_rows; ++i) from.logit_indices[num_logits++] = i;
    }
    StepView step = {};
    step.num_rows = num_rows;
    step.tokens = from.tokens;
    step.positions = from.positions;
    step.num_kv_groups = from.num_kv_groups;
    step.num_chunks = from.num_chunks;
    step.query_starts = from.query_starts;
    step.ends = from.ends;
    step.tables = from.tables;
    step.slots = from.slots;
    step.table_width = width;
    step.num_logits = num_logits;
    step.logit_indices = from.logit_indices;
    step.tree_depths = from.tree_depths;
    step.tree_paths = from.tree_paths;
    return step;
}

int64_t run_chunks(Team& team, const KernelTable& kernels, const Instructions& instructions, const StepAssembly& chunks,
                   BoundsError& error) {
    if (!can_assemble(chunks, instructions.capacity, error)) return 0;
    StepView step = assemble(chunks);
    if (!can_run(step, instructions.capacity, error)) return 0;
    team.run(kernels, instructions, step);
    return step.num_rows;
}

}  // namespace archerfish
