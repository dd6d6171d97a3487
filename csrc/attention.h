// Paged attention with an online softmax over tiles of keys.
//
// Tiles and splits begin at position 0 and have one size each, so a query attends to the same ones in the same order
// however its prompt was cut into chunks, and whatever else is in the step. Each split starts with an empty softmax
// state, and the states of all splits are merged in their order: the bits are the same whether one unit of work
// computes all splits or each has its own. Masked keys are skipped, or weigh exactly zero.
//
// A token of a tree attends along its own path. From the root on its keys are gathered from where they are stored, and
// then computed like any others. Before the root all tokens of a chunk share their tiles.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "attention_tiles.h"
#include "cache.h"
#include "lanes.h"
#include "program.h"
#include "rows.h"

namespace archerfish::ISA {
namespace {

constexpr int64_t QUERIES_PER_UNIT = 32;  // Query heads times rows, unless a single row has more heads.

// -- units of work ----------------------------------------------------------------------------------------------------

inline int64_t rows_per_unit(const AttendArgs& o) {
    return std::max<int64_t>(1, QUERIES_PER_UNIT / (o.queries.num_parts / o.cache.num_heads));
}

// The number of units that compute splits of the same queries: as many splits as the longest context of the step may
// have, or 1, for a unit that computes all splits, where there is no memory for so many states. Then there are many
// queries, and enough units for all threads.
inline int64_t units_per_query(const AttendArgs& o, const StepView& step) {
    int64_t queries = step.num_rows * o.queries.num_parts, longest = 0;
    if (2 * queries > MAX_ATTENTION_SPLITS) return 1;
    for (int64_t c = 0; c < step.num_chunks; ++c) longest = std::max<int64_t>(longest, step.ends[c]);
    // Positions of a unit's rows: those of a tree are not in order.
    int64_t spread = step.tree_depths ? std::max(rows_per_unit(o), MAX_TREE_TOKENS) : rows_per_unit(o);
    if (o.window) longest = std::min(longest, o.window + spread - 1 + SPLIT - 1);  // It may begin within a split.
    int64_t splits = std::max<int64_t>(1, (longest + SPLIT - 1) / SPLIT);
    return queries * splits <= MAX_ATTENTION_SPLITS ? splits : 1;
}

int64_t count_attend(const void* arguments, const StepView& step) {
    const AttendArgs& o = *static_cast<const AttendArgs*>(arguments);
    int64_t rows = rows_per_unit(o), units = 0;
    for (int64_t c = 0; c < step.num_chunks; ++c)
        units += (step.query_starts[c + 1] - step.query_starts[c] + rows - 1) / rows;
    return units * o.cache.num_heads * units_per_query(o, step);
}

// Sets the range of keys that queries from one position to another attend to.
inline void set_key_range(QueryTile& q, const AttendArgs& o, int64_t oldest, int64_t newest) {
    q.key_begin = o.window ? std::max<int64_t>(0, oldest - o.window + 1) : 0;
    q.key_end = newest + 1;
}

inline QueryTile queries_of(const AttendArgs& o, const StepView& step, int64_t unit) {
    QueryTile q;
    q.head = unit % o.cache.num_heads;
    q.repeat = o.queries.num_parts / o.cache.num_heads;
    int64_t left = unit / o.cache.num_heads, rows = rows_per_unit(o);
    for (q.chunk = 0;; ++q.chunk) {
        int64_t length = step.query_starts[q.chunk + 1] - step.query_starts[q.chunk];
        int64_t units = (length + rows - 1) / rows;
        if (left < units) {
            q.first_row = step.query_starts[q.chunk] + left * rows;
            q.num_rows = std::min(rows, length - left * rows);
            q.root = step.ends[q.chunk] - length;
            q.first_position = q.root + left * rows;
            q.count = q.num_rows * q.repeat;
            bool is_tree = step.tree_depths && step.tree_depths[q.first_row] >= 0;
            q.depths = is_tree ? step.tree_depths + q.first_row : nullptr;
            q.path = nullptr;
            int64_t oldest = q.first_position, newest = q.first_position + q.num_rows - 1;
            if (is_tree) {
                oldest = q.root + *std::min_element(q.depths, q.depths + q.num_rows);
                newest = q.root + *std::max_element(q.depths, q.depths + q.num_rows);
            }
            set_key_range(q, o, oldest, newest);
            return q;
        }
        left -= units;
    }
}

// The queries of one row of a tree.
inline QueryTile queries_of_tree_row(const AttendArgs& o, const StepView& step, const QueryTile& tree, int64_t row) {
    QueryTile q = tree;
    q.first_row = tree.first_row + row;
    q.num_rows = 1;
    q.count = tree.repeat;
    q.first_position = tree.root + tree.depths[row];
    q.depths = nullptr;
    q.path = step.tree_paths + q.first_row * MAX_TREE_TOKENS;
    set_key_range(q, o, q.first_position, q.first_position);
    return q;
}

// -- splits -----------------------------------------------------------------------------------------------------------

// Attends to a tile in which each row of a tree has keys of its own.
template <typename T>
void attend_tree_rows(const AttendArgs& o, const StepView& step, const QueryTile& q, const Workspace& work,
                      const int32_t* table, int64_t start) {
    for (int64_t row = 0; row < q.num_rows; ++row) {
        QueryTile of_row = queries_of_tree_row(o, step, q, row);
        if (start < of_row.key_end && start + TILE > of_row.key_begin)
            attend_tile<T>(o, of_row, work.from(row * q.repeat, o.cache.head_dim), table, start);
    }
}

template <typename T>
void attend_split(const AttendArgs& o, const StepView& step, const QueryTile& q, const Workspace& work, int64_t split) {
    const int32_t* table = step.tables[o.cache.kv_group] + q.chunk * step.table_width;
    clear(work.split, q.count, o.cache.head_dim);
    int64_t first = std::max(q.key_begin / TILE * TILE, split * SPLIT), last = std::min(q.key_end, (split + 1) * SPLIT);
    for (int64_t start = first; start < last; start += TILE) {
        bool has_tree_keys = q.depths && start + TILE > q.root;
        has_tree_keys ? attend_tree_rows<T>(o, step, q, work, table, start) : attend_tile<T>(o, q, work, table, start);
    }
}

// -- the operation ----------------------------------------------------------------------------------------------------

inline void write_output(const AttendArgs& o, const QueryTile& q, const SoftmaxState& total) {
    for (int64_t i = 0; i < q.count; ++i) {
        float* out = row_part(o.out, q.row(i), q.part(i));
        const float* sums = total.accumulators + i * o.cache.head_dim;
        for (int64_t d = 0; d < o.cache.head_dim; d += LANES)
            store(out + d, load(sums + d) / broadcast(total.exp_sums[i]));
    }
}

template <typename T>
void attend_all_splits(const AttendArgs& o, const StepView& step, const QueryTile& q, const Workspace& work) {
    int64_t head_dim = o.cache.head_dim;
    clear(work.total, q.count, head_dim);
    for (int64_t split = 0; split < q.num_splits(); ++split) {
        attend_split<T>(o, step, q, work, q.first_split() + split);
        for (int64_t i = 0; i < q.count; ++i) merge_state(work.total, i, work.split, i, head_dim);
    }
    write_output(o, q, work.total);
}

// Computes one split and stores its state. The unit that finishes last merges the states of all splits, in their order.
template <typename T>
void attend_one_split(const AttendArgs& o, const StepView& step, const QueryTile& q, const Workspace& work,
                      int64_t split, int64_t units) {
    int64_t head_dim = o.cache.head_dim;
    SoftmaxState states = {o.splits.accumulators, o.splits.max_scores, o.splits.exp_sums};
    auto first_state = [&](int64_t i) { return (q.row(i) * o.queries.num_parts + q.part(i)) * units; };
    attend_split<T>(o, step, q, work, q.first_split() + split);
    for (int64_t i = 0; i < q.count; ++i) {
        int64_t state = first_state(i) + split;
        std::memcpy(states.accumulators + state * head_dim, work.split.accumulators + i * head_dim,
                    head_dim * sizeof(float));
        states.max_scores[state] = work.split.max_scores[i];
        states.exp_sums[state] = work.split.exp_sums[i];
    }
    int32_t* num_done = o.splits.num_done + first_state(0);
    if (__atomic_add_fetch(num_done, 1, __ATOMIC_ACQ_REL) < q.num_splits()) return;
    *num_done = 0;
    clear(work.total, q.count, head_dim);
    for (int64_t i = 0; i < q.count; ++i)
        for (int64_t other = 0; other < q.num_splits(); ++other)
            merge_state(work.total, i, states, first_state(i) + other, head_dim);
    write_output(o, q, work.total);
}

void attend(const void* arguments, const StepView& step, int64_t unit, Scratch scratch) {
    const AttendArgs& o = *static_cast<const AttendArgs*>(arguments);
    int64_t units = units_per_query(o, step), split = unit % units;
    QueryTile q = queries_of(o, step, unit / units);
    if (split && split >= q.num_splits()) return;  // Other queries of the step have more splits.
    Workspace work = load_queries(o, q, scratch);
    dispatch_cache_format(o.cache.format, [&](auto value) {
        using T = decltype(value);
        units == 1 ? attend_all_splits<T>(o, step, q, work) : attend_one_split<T>(o, step, q, work, split, units);
    });
}

}  // namespace
}  // namespace archerfish::ISA
