// Paged attention with a running softmax over tiles of keys.
//
// Tiles and spans begin at position 0 and have one size each, so a query meets the same ones in the same order however
// its prompt was cut into chunks, and whoever else is in the step. It starts anew with every span, and what the spans
// gave is put together in their order: the same numbers come out whether one unit walks all of them or each has its
// own. Keys it may not see take no part at all, or weigh exactly zero.
//
// A token of a tree sees its own line there: where that begins, its keys are brought together from where they were
// stored, and then walked like everybody's. What lies before the tree, tokens of one chunk walk together as ever.
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

constexpr int64_t MOST_QUERIES = 32;  // Heads x rows that one unit works on.

// -- what a unit has to do --------------------------------------------------------------------------------------------

inline int64_t rows_a_unit(const Attend& o) {
    return std::max<int64_t>(1, MOST_QUERIES / (o.queries.num_parts / o.cache.num_heads));
}

// How many units share out the spans of the same queries: as many as the longest of the step may have, or one that
// walks all of its spans where there is no room for so many parts. Then there are many queries, and work enough for
// everybody.
inline int64_t spans_apart(const Attend& o, const Step& step) {
    int64_t queries = step.num_rows * o.queries.num_parts, longest = 0;
    if (2 * queries > MOST_PARTS) return 1;
    for (int64_t c = 0; c < step.num_chunks; ++c) longest = std::max<int64_t>(longest, step.ends[c]);
    // Positions of a unit's rows: those of a tree are not in order.
    int64_t spread = step.depths ? std::max(rows_a_unit(o), MOST_TREE_TOKENS) : rows_a_unit(o);
    if (o.window) longest = std::min(longest, o.window + spread - 1 + SPAN - 1);  // It may begin within a span.
    int64_t spans = std::max<int64_t>(1, (longest + SPAN - 1) / SPAN);
    return queries * spans <= MOST_PARTS ? spans : 1;
}

int64_t count_attend(const void* operands, const Step& step) {
    const Attend& o = *(const Attend*)operands;
    int64_t rows = rows_a_unit(o), units = 0;
    for (int64_t c = 0; c < step.num_chunks; ++c)
        units += (step.query_starts[c + 1] - step.query_starts[c] + rows - 1) / rows;
    return units * o.cache.num_heads * spans_apart(o, step);
}

// What queries from one position to another may see.
inline void see(Queries& q, const Attend& o, int64_t oldest, int64_t newest) {
    q.seen_from = o.window ? std::max<int64_t>(0, oldest - o.window + 1) : 0;
    q.seen_to = newest + 1;
}

inline Queries queries_of(const Attend& o, const Step& step, int64_t unit) {
    Queries q;
    q.head = unit % o.cache.num_heads;
    q.repeat = o.queries.num_parts / o.cache.num_heads;
    int64_t left = unit / o.cache.num_heads, rows = rows_a_unit(o);
    for (q.chunk = 0;; ++q.chunk) {
        int64_t length = step.query_starts[q.chunk + 1] - step.query_starts[q.chunk],
                units = (length + rows - 1) / rows;
        if (left < units) {
            q.first_row = step.query_starts[q.chunk] + left * rows;
            q.num_rows = std::min(rows, length - left * rows);
            q.root = step.ends[q.chunk] - length;
            q.first_position = q.root + left * rows;
            q.count = q.num_rows * q.repeat;
            bool is_tree = step.depths && step.depths[q.first_row] >= 0;
            q.depths = is_tree ? step.depths + q.first_row : nullptr;
            q.line = nullptr;
            int64_t oldest = q.first_position, newest = q.first_position + q.num_rows - 1;
            if (is_tree) {
                oldest = q.root + *std::min_element(q.depths, q.depths + q.num_rows);
                newest = q.root + *std::max_element(q.depths, q.depths + q.num_rows);
            }
            see(q, o, oldest, newest);
            return q;
        }
        left -= units;
    }
}

// One row of a tree.
inline Queries line_of(const Attend& o, const Step& step, const Queries& all, int64_t row) {
    Queries q = all;
    q.first_row = all.first_row + row;
    q.num_rows = 1;
    q.count = all.repeat;
    q.first_position = all.root + all.depths[row];
    q.depths = nullptr;
    q.line = step.lines + q.first_row * MOST_TREE_TOKENS;
    see(q, o, q.first_position, q.first_position);
    return q;
}

// -- walking spans ----------------------------------------------------------------------------------------------------

// A tile in which each row of a tree has keys of its own.
template <typename T>
void walk_lines(const Attend& o, const Step& step, const Queries& q, const Walk& walk, const int32_t* table,
                int64_t start) {
    for (int64_t row = 0; row < q.num_rows; ++row) {
        Queries one = line_of(o, step, q, row);
        if (start < one.seen_to && start + TILE > one.seen_from)
            walk_tile<T>(o, one, walk.from(row * q.repeat, o.cache.head_dim), table, start);
    }
}

template <typename T>
void walk_span(const Attend& o, const Step& step, const Queries& q, const Walk& walk, int64_t span) {
    const int32_t* table = step.tables[o.cache.group] + q.chunk * step.table_width;
    clear(walk.span, q.count, o.cache.head_dim);
    int64_t first = std::max(q.seen_from / TILE * TILE, span * SPAN), last = std::min(q.seen_to, (span + 1) * SPAN);
    for (int64_t start = first; start < last; start += TILE) {
        bool is_apart = q.depths && start + TILE > q.root;
        is_apart ? walk_lines<T>(o, step, q, walk, table, start) : walk_tile<T>(o, q, walk, table, start);
    }
}

// -- units ------------------------------------------------------------------------------------------------------------

inline void write_out(const Attend& o, const Queries& q, const Gathered& all_spans) {
    for (int64_t i = 0; i < q.count; ++i) {
        float* out = part_of(o.out, q.row(i), q.part(i));
        const float* sums = all_spans.sums + i * o.cache.head_dim;
        for (int64_t d = 0; d < o.cache.head_dim; d += LANES) store(out + d, load(sums + d) / all(all_spans.totals[i]));
    }
}

template <typename T>
void walk_all_spans(const Attend& o, const Step& step, const Queries& q, const Walk& walk) {
    int64_t head_dim = o.cache.head_dim;
    clear(walk.all, q.count, head_dim);
    for (int64_t span = 0; span < q.num_spans(); ++span) {
        walk_span<T>(o, step, q, walk, q.first_span() + span);
        for (int64_t i = 0; i < q.count; ++i) add_gathered(walk.all, i, walk.span, i, head_dim);
    }
    write_out(o, q, walk.all);
}

// One span, whose part is left for the unit that comes to its end last: that one puts the parts together, in their
// order.
template <typename T>
void walk_one_span(const Attend& o, const Step& step, const Queries& q, const Walk& walk, int64_t span, int64_t apart) {
    int64_t head_dim = o.cache.head_dim;
    Gathered parts = {o.parts.sums, o.parts.peaks, o.parts.totals};
    auto place = [&](int64_t i) { return (q.row(i) * o.queries.num_parts + q.part(i)) * apart; };
    walk_span<T>(o, step, q, walk, q.first_span() + span);
    for (int64_t i = 0; i < q.count; ++i) {
        std::memcpy(parts.sums + (place(i) + span) * head_dim, walk.span.sums + i * head_dim, head_dim * sizeof(float));
        parts.peaks[place(i) + span] = walk.span.peaks[i];
        parts.totals[place(i) + span] = walk.span.totals[i];
    }
    int32_t* arrived = o.parts.arrived + place(0);
    if (__atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL) < q.num_spans()) return;
    *arrived = 0;
    clear(walk.all, q.count, head_dim);
    for (int64_t i = 0; i < q.count; ++i)
        for (int64_t one = 0; one < q.num_spans(); ++one) add_gathered(walk.all, i, parts, place(i) + one, head_dim);
    write_out(o, q, walk.all);
}

void attend(const void* operands, const Step& step, int64_t unit, uint8_t* scratch) {
    const Attend& o = *(const Attend*)operands;
    int64_t apart = spans_apart(o, step), span = unit % apart;
    Queries q = queries_of(o, step, unit / apart);
    if (span && span >= q.num_spans()) return;  // Others in the step have more.
    Walk walk = begin_walk(o, q, scratch);
    with_number(o.cache.number, [&](auto number) {
        using T = decltype(number);
        apart == 1 ? walk_all_spans<T>(o, step, q, walk) : walk_one_span<T>(o, step, q, walk, span, apart);
    });
}

}  // namespace
}  // namespace archerfish::ISA
