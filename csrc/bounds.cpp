// What a call brings is checked against what its program was built for, before anything is computed. Once a call:
// kernels rely on it and check nothing.
#include "bounds.h"

#include <algorithm>

namespace archerfish {
namespace {

// The extremes first, in a loop that compilers turn into vectors.
template <typename T>
bool all_within(Refusal& refusal, Limit limit, const T* numbers, int64_t count, int64_t least, int64_t most) {
    if (count == 0) return true;
    T smallest = numbers[0], largest = numbers[0];
    for (int64_t i = 1; i < count; ++i) {
        smallest = std::min(smallest, numbers[i]);
        largest = std::max(largest, numbers[i]);
    }
    return within(refusal, limit, smallest, least, most) && within(refusal, limit, largest, least, most);
}

// In a tree, every token has a depth, and its line consists of tokens of the chunk. Otherwise none has a depth.
bool is_tree_sound(const Step& step, int64_t first, int64_t length, Refusal& refusal) {
    const int32_t* depths = step.depths + first;
    if (depths[0] < 0) return all_within(refusal, Limit::depth, depths, length, -1, -1);
    const uint8_t* lines = step.lines + first * MOST_TREE_TOKENS;
    return within(refusal, Limit::length, length, 1, MOST_TREE_TOKENS) &&
           all_within(refusal, Limit::depth, depths, length, 0, length - 1) &&
           all_within(refusal, Limit::line, lines, length * MOST_TREE_TOKENS, 0, length - 1);
}

// One chunk of a step: rows of it, and the blocks that hold its context.
bool can_attend(const Step& step, const Capacity& capacity, int64_t chunk, Refusal& refusal) {
    int64_t first = step.query_starts[chunk], length = step.query_starts[chunk + 1] - first, end = step.ends[chunk];
    if (!within(refusal, Limit::rows, first, 0, step.num_rows) ||
        !within(refusal, Limit::length, length, 0, step.num_rows - first) ||
        !within(refusal, Limit::end, end, length, step.table_width * capacity.block_size))
        return false;
    int64_t num_blocks = (end + capacity.block_size - 1) / capacity.block_size;
    for (int64_t g = 0; g < capacity.groups; ++g)
        if (const int32_t* table = step.tables[g] + chunk * step.table_width;
            !all_within(refusal, Limit::block, table, num_blocks, 0, capacity.blocks - 1))
            return false;
    return !step.depths || length == 0 || is_tree_sound(step, first, length, refusal);
}

}  // namespace

bool can_assemble(const Assembly& from, const Capacity& capacity, Refusal& refusal) {
    if (!within(refusal, Limit::chunks, from.num_chunks, 0, from.max_chunks)) return false;
    if (!within(refusal, Limit::groups, capacity.groups, 0, from.num_groups)) return false;
    if (capacity.groups &&
        !within(refusal, Limit::block_size, from.block_size, capacity.block_size, capacity.block_size))
        return false;
    int64_t num_rows = 0, num_picked = 0;
    for (int64_t c = 0; c < from.num_chunks; ++c) {
        const Chunk& chunk = from.chunks[c];
        if (!within(refusal, Limit::row, chunk.row, 0, from.num_rows - 1) ||
            !within(refusal, Limit::start, chunk.start, 0, from.max_length - 1) ||
            !within(refusal, Limit::length, chunk.length, 1, from.max_length) ||
            !within(refusal, Limit::end, chunk.start + chunk.length, 1, from.max_length) ||
            !within(refusal, Limit::chunk_picked, chunk.num_logits, 0, chunk.length))
            return false;
        num_rows += chunk.length;
        num_picked += chunk.num_logits;
    }
    return within(refusal, Limit::rows, num_rows, 0, std::min(from.max_tokens, capacity.rows)) &&
           within(refusal, Limit::picked, num_picked, 0, std::min(from.max_picked, capacity.picked)) &&
           (!from.depths || within(refusal, Limit::tree, from.num_depths, num_rows, num_rows));
}

bool can_run(const Step& step, const Capacity& capacity, Refusal& refusal) {
    int64_t rows = step.num_rows;
    if (!within(refusal, Limit::rows, rows, 0, capacity.rows) ||
        !within(refusal, Limit::picked, step.num_picked, 0, capacity.picked) ||
        !within(refusal, Limit::groups, capacity.groups, 0, step.num_groups))
        return false;
    if (capacity.tokens && !all_within(refusal, Limit::token, step.tokens, rows, 0, capacity.tokens - 1)) return false;
    if (capacity.positions && !all_within(refusal, Limit::position, step.positions, rows, 0, capacity.positions - 1))
        return false;
    int64_t num_slots = capacity.blocks * capacity.block_size;
    for (int64_t g = 0; g < capacity.groups && step.slots; ++g)
        if (!all_within(refusal, Limit::slot, step.slots[g], rows, 0, num_slots - 1)) return false;
    for (int64_t c = 0; c < step.num_chunks && capacity.groups; ++c)
        if (!can_attend(step, capacity, c, refusal)) return false;
    return true;
}

bool can_draft(const Drafting& drafting, Refusal& refusal) {
    const Assembly &first = *drafting.first.assembly, &further = *drafting.further.assembly;
    const Capacity& further_capacity = drafting.further.instructions.capacity;
    int64_t most_chunks = std::min({drafting.max_chunks, further.max_chunks, further_capacity.rows});
    if (!within(refusal, Limit::chunks, first.num_chunks, 0, most_chunks) ||
        !can_assemble(first, drafting.first.instructions.capacity, refusal))
        return false;
    for (int64_t c = 0; c < first.num_chunks; ++c) {
        const Chunk& chunk = first.chunks[c];
        int64_t end = chunk.start + chunk.length, max_length = std::min(first.max_length, further.max_length);
        // The last draft token is written to no row.
        if (!within(refusal, Limit::chunk_picked, chunk.num_logits, 1, 1) ||
            !within(refusal, Limit::count, drafting.counts[c], 1, std::min(drafting.max_count, max_length - end + 1)))
            return false;
    }
    return true;
}

}  // namespace archerfish
