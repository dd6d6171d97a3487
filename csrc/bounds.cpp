#include "bounds.h"

#include <algorithm>

namespace archerfish {
namespace {

// Finds the extremes first, in a loop that compilers vectorize.
template <typename T>
bool all_within(BoundsError& error, Limit limit, const T* values, int64_t count, int64_t min, int64_t max) {
    if (count == 0) return true;
    T smallest = values[0], largest = values[0];
    for (int64_t i = 1; i < count; ++i) {
        smallest = std::min(smallest, values[i]);
        largest = std::max(largest, values[i]);
    }
    return within(error, limit, smallest, min, max) && within(error, limit, largest, min, max);
}

// In a tree every token has a depth, and its path consists of tokens of the chunk. Otherwise no token has a depth.
bool is_tree_valid(const StepView& step, int64_t first, int64_t length, BoundsError& error) {
    const int32_t* depths = step.tree_depths + first;
    if (depths[0] < 0) return all_within(error, Limit::depth, depths, length, -1, -1);
    const uint8_t* paths = step.tree_paths + first * MAX_TREE_TOKENS;
    return within(error, Limit::length, length, 1, MAX_TREE_TOKENS) &&
           all_within(error, Limit::depth, depths, length, 0, length - 1) &&
           all_within(error, Limit::tree_path, paths, length * MAX_TREE_TOKENS, 0, length - 1);
}

// Checks one chunk of a step: its rows, and the blocks that hold its context.
bool can_attend(const StepView& step, const ProgramCapacity& capacity, int64_t chunk, BoundsError& error) {
    int64_t first = step.query_starts[chunk], length = step.query_starts[chunk + 1] - first, end = step.ends[chunk];
    if (!within(error, Limit::rows, first, 0, step.num_rows) ||
        !within(error, Limit::length, length, 0, step.num_rows - first) ||
        !within(error, Limit::end, end, length, step.table_width * capacity.block_size))
        return false;
    int64_t num_blocks = (end + capacity.block_size - 1) / capacity.block_size;
    for (int64_t g = 0; g < capacity.kv_groups; ++g)
        if (const int32_t* table = step.tables[g] + chunk * step.table_width;
            !all_within(error, Limit::block, table, num_blocks, 0, capacity.blocks - 1))
            return false;
    return !step.tree_depths || length == 0 || is_tree_valid(step, first, length, error);
}

}  // namespace

bool can_assemble(const StepAssembly& from, const ProgramCapacity& capacity, BoundsError& error) {
    if (!within(error, Limit::chunks, from.num_chunks, 0, from.max_chunks)) return false;
    if (!within(error, Limit::kv_groups, capacity.kv_groups, 0, from.num_kv_groups)) return false;
    if (capacity.kv_groups &&
        !within(error, Limit::block_size, from.block_size, capacity.block_size, capacity.block_size))
        return false;
    int64_t num_rows = 0, num_logits = 0;
    for (int64_t c = 0; c < from.num_chunks; ++c) {
        const Chunk& chunk = from.chunks[c];
        if (!within(error, Limit::row, chunk.row, 0, from.num_rows - 1) ||
            !within(error, Limit::start, chunk.start, 0, from.max_length - 1) ||
            !within(error, Limit::length, chunk.length, 1, from.max_length) ||
            !within(error, Limit::end, chunk.start + chunk.length, 1, from.max_length) ||
            !within(error, Limit::chunk_logits, chunk.num_logits, 0, chunk.length))
            return false;
        num_rows += chunk.length;
        num_logits += chunk.num_logits;
    }
    return within(error, Limit::rows, num_rows, 0, std::min(from.max_tokens, capacity.rows)) &&
           within(error, Limit::logits, num_logits, 0, std::min(from.max_logits, capacity.logits)) &&
           (!from.tree_depths || within(error, Limit::tree_depths, from.num_tree_depths, num_rows, num_rows));
}

bool can_run(const StepView& step, const ProgramCapacity& capacity, BoundsError& error) {
    int64_t rows = step.num_rows;
    if (!within(error, Limit::rows, rows, 0, capacity.rows) ||
        !within(error, Limit::logits, step.num_logits, 0, capacity.logits) ||
        !within(error, Limit::kv_groups, capacity.kv_groups, 0, step.num_kv_groups))
        return false;
    if (capacity.tokens && !all_within(error, Limit::token, step.tokens, rows, 0, capacity.tokens - 1)) return false;
    if (capacity.positions && !all_within(error, Limit::position, step.positions, rows, 0, capacity.positions - 1))
        return false;
    int64_t num_slots = capacity.blocks * capacity.block_size;
    for (int64_t g = 0; g < capacity.kv_groups && step.slots; ++g)
        if (!all_within(error, Limit::slot, step.slots[g], rows, 0, num_slots - 1)) return false;
    for (int64_t c = 0; c < step.num_chunks && capacity.kv_groups; ++c)
        if (!can_attend(step, capacity, c, error)) return false;
    return true;
}

bool can_draft(const Drafting& drafting, BoundsError& error) {
    const StepAssembly &first = *drafting.first.assembly, &next = *drafting.next.assembly;
    int64_t max_chunks = std::min({drafting.max_chunks, next.max_chunks, drafting.next.instructions.capacity.rows});
    if (!within(error, Limit::chunks, first.num_chunks, 0, max_chunks) ||
        !can_assemble(first, drafting.first.instructions.capacity, error))
        return false;
    for (int64_t c = 0; c < first.num_chunks; ++c) {
        const Chunk& chunk = first.chunks[c];
        int64_t end = chunk.start + chunk.length, max_length = std::min(first.max_length, next.max_length);
        // The last draft token is written to no row.
        int64_t max_draft_tokens = std::min(drafting.max_draft_tokens, max_length - end + 1);
        if (!within(error, Limit::chunk_logits, chunk.num_logits, 1, 1) ||
            !within(error, Limit::draft_tokens, drafting.num_draft_tokens[c], 1, max_draft_tokens))
            return false;
    }
    return true;
}

}  // namespace archerfish
