// Attention of some queries to one tile of keys, with a running softmax.
//
// Knows queries and where the cache has their keys; which queries a unit has, and which tiles it walks, is for
// attention.h to say.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cache.h"
#include "lanes.h"
#include "program.h"
#include "rows.h"

namespace archerfish::ISA {
namespace {

constexpr int64_t TILE = 64;       // Keys. A multiple of every block size or a divisor of it.
constexpr int64_t SPAN = 512;      // Keys that one unit walks where spans are shared out: a multiple of a tile.
constexpr float NEVER = -3.0e38f;  // Below every score; not infinite, so that differences stay defined.

// The queries of one unit: consecutive rows of one chunk, all heads that share one head of keys. And the keys that any
// of them may see.
struct Queries {
    int64_t chunk, first_row, num_rows, first_position, head, repeat, count, seen_from, seen_to;
    int64_t root;           // Position of the chunk's first token.
    const int32_t* depths;  // Of the rows of a tree, or null.
    const uint8_t* line;    // Of a single row of a tree, or null: where its keys lie from the root on.
    int64_t row(int64_t query) const { return first_row + query / repeat; }
    int64_t part(int64_t query) const { return head * repeat + query % repeat; }
    int64_t position(int64_t query) const {
        return depths ? root + depths[query / repeat] : first_position + query / repeat;
    }
    int64_t place(int64_t position) const { return position < root ? position : root + line[position - root]; }
    int64_t first_span() const { return seen_from / SPAN; }
    int64_t num_spans() const { return (seen_to + SPAN - 1) / SPAN - first_span(); }
};

// -- sums so far ------------------------------------------------------------------------------------------------------

// What queries have gathered from the keys they met: values by their weights, which are relative to a peak.
struct Gathered {
    float* sums;    // [queries][head_dim]
    float* peaks;   // [queries]
    float* totals;  // [queries]
};

inline void clear(const Gathered& all_queries, int64_t count, int64_t head_dim) {
    std::memset(all_queries.sums, 0, count * head_dim * sizeof(float));
    std::memset(all_queries.totals, 0, count * sizeof(float));
    std::fill_n(all_queries.peaks, count, NEVER);
}

inline float exponential_of(float x) {
    float lanes[LANES];
    store(lanes, exponential(all(x)));
    return lanes[0];
}

// Add what a query gathered elsewhere.
inline void add_gathered(const Gathered& to, int64_t query, const Gathered& from, int64_t place, int64_t head_dim) {
    if (from.totals[place] == 0.0f) return;  // It met no key there.
    float peak = std::max(to.peaks[query], from.peaks[place]);
    float shrink = exponential_of(to.peaks[query] - peak), grow = exponential_of(from.peaks[place] - peak);
    to.peaks[query] = peak;
    to.totals[query] = to.totals[query] * shrink + from.totals[place] * grow;
    float* sums = to.sums + query * head_dim;
    const float* more = from.sums + place * head_dim;
    for (int64_t d = 0; d < head_dim; d += LANES)
        store(sums + d, fma(load(more + d), all(grow), load(sums + d) * all(shrink)));
}

// -- walking keys -----------------------------------------------------------------------------------------------------

// What a unit keeps of its queries while it walks the keys.
struct Walk {
    float* q;            // [queries][head_dim], scaled.
    float* scores;       // [queries][TILE], then the weights.
    Gathered span;       // Of the span that is walked.
    Gathered all;        // Of all spans so far.
    float* line_keys;    // [TILE][head_dim] numbers as the cache has them, of keys that are brought together,
    float* line_scales;  // [TILE] and their scales.

    // The same for queries from one on.
    Walk from(int64_t query, int64_t head_dim) const {
        Walk walk = *this;
        walk.q += query * head_dim;
        walk.scores += query * TILE;
        walk.span = {span.sums + query * head_dim, span.peaks + query, span.totals + query};
        return walk;
    }
};

inline float* take(uint8_t*& scratch, int64_t count) {
    float* taken = (float*)scratch;
    scratch += count * sizeof(float);
    return taken;
}
inline Gathered take_gathered(uint8_t*& scratch, int64_t count, int64_t head_dim) {
    float* sums = take(scratch, count * head_dim);
    float* peaks = take(scratch, count);
    return {sums, peaks, take(scratch, count)};
}

inline Walk begin_walk(const Attend& o, const Queries& q, uint8_t* scratch) {
    int64_t head_dim = o.cache.head_dim;
    Walk walk;
    walk.q = take(scratch, q.count * head_dim);
    walk.scores = take(scratch, q.count * TILE);
    walk.span = take_gathered(scratch, q.count, head_dim);
    walk.all = take_gathered(scratch, q.count, head_dim);
    walk.line_keys = take(scratch, TILE * head_dim);
    walk.line_scales = take(scratch, TILE);
    for (int64_t i = 0; i < q.count; ++i) {
        const float* in = part_of(o.queries, q.row(i), q.part(i));
        float* out = walk.q + i * head_dim;
        if (o.angles.data) {
            rotate_part(in, out, head_dim, o.angles, q.row(i));
            in = out;
        }
        for (int64_t d = 0; d < head_dim; d += LANES) store(out + d, load(in + d) * all(o.scale));
    }
    return walk;
}

// Sums that grow side by side, so that none waits for its own last product: as many as registers hold.
#ifdef ARCHERFISH_AVX512
constexpr int KEYS_AT_ONCE = 4;    // Sixteens.
constexpr int VALUES_AT_ONCE = 4;  // Vectors of a head.
#else
constexpr int KEYS_AT_ONCE = 1;
constexpr int VALUES_AT_ONCE = 2;
#endif

// Sixteen keys that lie together, where their scores go in a tile.
template <typename T>
struct Sixteen {
    const T* keys;        // [head_dim][16]
    const float* scales;  // Or null.
    int64_t place;
};

template <typename T, int SIXTEENS, int QUERIES>
inline void score_keys(const Sixteen<T>* sixteens, int64_t head_dim, const float* q, float* scores) {
    Floats sums[QUERIES][SIXTEENS];
    for (int i = 0; i < QUERIES; ++i)
        for (int s = 0; s < SIXTEENS; ++s) sums[i][s] = zeros();
    for (int64_t d = 0; d < head_dim; ++d) {
        Floats k[SIXTEENS];
        for (int s = 0; s < SIXTEENS; ++s) k[s] = load_number(sixteens[s].keys + d * LANES);
        for (int i = 0; i < QUERIES; ++i)
            for (int s = 0; s < SIXTEENS; ++s) sums[i][s] = fma(k[s], all(q[i * head_dim + d]), sums[i][s]);
    }
    for (int i = 0; i < QUERIES; ++i)
        for (int s = 0; s < SIXTEENS; ++s) {
            Floats sum = sixteens[s].scales ? sums[i][s] * load(sixteens[s].scales) : sums[i][s];
            store(scores + i * TILE + sixteens[s].place, sum);
        }
}

template <typename T, int QUERIES, int WIDE>
inline void add_part(const T* const* rows, int64_t first, int64_t last, int64_t head_dim, const float* weights,
                     float* sums) {
    Floats parts[QUERIES][WIDE];
    for (int i = 0; i < QUERIES; ++i)
        for (int w = 0; w < WIDE; ++w) parts[i][w] = load(sums + i * head_dim + w * LANES);
    for (int64_t j = first; j < last; ++j) {
        Floats v[WIDE];
        for (int w = 0; w < WIDE; ++w) v[w] = load_number(rows[j] + w * LANES);
        for (int i = 0; i < QUERIES; ++i)
            for (int w = 0; w < WIDE; ++w) parts[i][w] = fma(v[w], all(weights[i * TILE + j]), parts[i][w]);
    }
    for (int i = 0; i < QUERIES; ++i)
        for (int w = 0; w < WIDE; ++w) store(sums + i * head_dim + w * LANES, parts[i][w]);
}

template <typename T, int QUERIES>
inline void add_values(const T* const* rows, int64_t first, int64_t last, int64_t head_dim, const float* weights,
                       float* sums) {
    const T* parts[TILE];
    for (int64_t d = 0; d < head_dim;) {
        for (int64_t j = first; j < last; ++j) parts[j] = rows[j] + d;
        bool is_wide = d + VALUES_AT_ONCE * LANES <= head_dim;
        if (is_wide)
            add_part<T, QUERIES, VALUES_AT_ONCE>(parts, first, last, head_dim, weights, sums + d);
        else
            add_part<T, QUERIES, 1>(parts, first, last, head_dim, weights, sums + d);
        d += (is_wide ? VALUES_AT_ONCE : 1) * LANES;
    }
}

// Turn a query's scores of a tile into weights, and shrink what it has by the new peak. [first, last) may be seen.
inline void weigh(const Walk& walk, int64_t query, int64_t first, int64_t last, const float* scales, const Attend& o) {
    float* scores = walk.scores + query * TILE;
    if (o.softcap != 0.0f)
        for (int64_t j = 0; j < TILE; j += LANES)
            store(scores + j, hyperbolic_tangent(load(scores + j) / all(o.softcap)) * all(o.softcap));
    for (int64_t j = 0; j < first; ++j) scores[j] = NEVER;
    for (int64_t j = last; j < TILE; ++j) scores[j] = NEVER;
    Floats most = all(NEVER);
    for (int64_t j = 0; j < TILE; j += LANES) most = max(most, load(scores + j));
    float before = walk.span.peaks[query], peak = std::max(before, largest(most));
    Floats total = zeros();
    for (int64_t j = 0; j < TILE; j += LANES) {
        Floats weight = exponential(load(scores + j) - all(peak));
        total = total + weight;
        // Values are whole numbers where they have scales: what each stands for comes in by its weight.
        store(scores + j, scales ? weight * load(scales + j) : weight);
    }
    // Also where a scale was left by somebody else, and is perhaps no number.
    for (int64_t j = 0; j < first; ++j) scores[j] = 0.0f;
    for (int64_t j = last; j < TILE; ++j) scores[j] = 0.0f;
    walk.span.peaks[query] = peak;
    if (peak != before) {
        float shrink = exponential_of(before - peak);
        walk.span.totals[query] *= shrink;
        float* sums = walk.span.sums + query * o.cache.head_dim;
        for (int64_t d = 0; d < o.cache.head_dim; d += LANES) store(sums + d, load(sums + d) * all(shrink));
    }
    walk.span.totals[query] += sum(total);
}

// Calls f(first, number) for queries in fours, and for those that are left.
template <typename Function>
inline void by_fours(int64_t count, Function f) {
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) f(i, std::integral_constant<int, 4>());
    if (count - i == 3) f(i, std::integral_constant<int, 3>());
    if (count - i == 2) f(i, std::integral_constant<int, 2>());
    if (count - i == 1) f(i, std::integral_constant<int, 1>());
}

template <typename T>
void score_tile(const Queries& q, const Walk& walk, const Sixteen<T>* sixteens, int count, int64_t head_dim) {
    int s = 0;
    for (; s + KEYS_AT_ONCE <= count; s += KEYS_AT_ONCE)
        by_fours(q.count, [&](int64_t i, auto n) {
            score_keys<T, KEYS_AT_ONCE, n.value>(sixteens + s, head_dim, walk.q + i * head_dim, walk.scores + i * TILE);
        });
    for (; s < count; ++s)
        by_fours(q.count, [&](int64_t i, auto n) {
            score_keys<T, 1, n.value>(sixteens + s, head_dim, walk.q + i * head_dim, walk.scores + i * TILE);
        });
}

// The keys and values of a tile, where they are to be read.
template <typename T>
struct Tile {
    const T* values[TILE];
    float scales[TILE] = {};  // Of values.
    Sixteen<T> sixteens[TILE / LANES];
    int num_sixteens = 0;
};

// Where the cache has a key and a value, and what comes after them in the block.
template <typename T>
struct Stored {
    Stored(const Cache& cache, const int32_t* table, int64_t head, int64_t place) {
        int64_t block = table[place / cache.block_size], offset = place % cache.block_size, size = cache.head_dim;
        int64_t first = block * cache.block_size * cache.num_heads * size;
        keys =
            (const T*)cache.keys + first + (head * cache.block_size + offset / LANES * LANES) * size + offset % LANES;
        values = (const T*)cache.values + first + (offset * cache.num_heads + head) * size;
        key_scales = scale_of(cache, cache.key_scales, block, head, offset);
        value_scales = scale_of(cache, cache.value_scales, block, head, offset);
    }
    const T* keys;  // [head_dim][16], from its own column on.
    const T* values;
    const float* key_scales;
    const float* value_scales;
};

// Sixteen keys from a position on, which lie together.
template <typename T>
void take_sixteen(const Cache& cache, const Queries& q, const int32_t* table, int64_t position, int64_t j,
                  Tile<T>& tile) {
    Stored<T> stored(cache, table, q.head, position);
    for (int64_t i = 0; i < LANES; ++i) tile.values[j + i] = stored.values + i * cache.num_heads * cache.head_dim;
    if (stored.value_scales) store(tile.scales + j, load(stored.value_scales));
    tile.sixteens[tile.num_sixteens++] = {stored.keys, stored.key_scales, j};
}

// The sixteen just taken, of which some are others in a line: those are fetched from where they were stored.
template <typename T>
void follow_line(const Attend& o, const Queries& q, const Walk& walk, const int32_t* table, int64_t position,
                 Tile<T>& tile) {
    const Cache& cache = o.cache;
    Sixteen<T>& sixteen = tile.sixteens[tile.num_sixteens - 1];
    T* keys = (T*)(walk.line_keys + sixteen.place * cache.head_dim);
    float* key_scales = walk.line_scales + sixteen.place;
    std::memcpy(keys, sixteen.keys, LANES * cache.head_dim * sizeof(T));
    if (sixteen.scales) std::memcpy(key_scales, sixteen.scales, LANES * sizeof(float));
    int64_t last = std::min(position + LANES, q.seen_to);
    for (int64_t one = std::max(position, q.root); one < last; ++one) {
        if (q.place(one) == one) continue;
        Stored<T> stored(cache, table, q.head, q.place(one));
        int64_t i = one - position;
        for (int64_t d = 0; d < cache.head_dim; ++d) keys[d * LANES + i] = stored.keys[d * LANES];
        tile.values[sixteen.place + i] = stored.values;
        if (sixteen.scales) key_scales[i] = *stored.key_scales;
        if (stored.value_scales) tile.scales[sixteen.place + i] = *stored.value_scales;
    }
    sixteen.keys = keys;
    if (sixteen.scales) sixteen.scales = key_scales;
}

// One tile of keys, [start, start + TILE), of which the unit may see [seen_from, seen_to).
template <typename T>
void walk_tile(const Attend& o, const Queries& q, const Walk& walk, const int32_t* table, int64_t start) {
    const Cache& cache = o.cache;
    int64_t head_dim = cache.head_dim;
    Tile<T> tile;
    for (int64_t j = 0; j < TILE; j += LANES) {
        int64_t position = start + j;
        if (position >= q.seen_to || position + LANES <= q.seen_from) continue;
        take_sixteen(cache, q, table, position, j, tile);
        if (q.line && position + LANES > q.root) follow_line(o, q, walk, table, position, tile);
    }
    score_tile<T>(q, walk, tile.sixteens, tile.num_sixteens, head_dim);
    for (int64_t i = 0; i < q.count; ++i) {
        int64_t position = q.position(i);
        int64_t first = o.window ? std::max<int64_t>(0, position - o.window + 1 - start) : 0;
        int64_t last = std::min<int64_t>(TILE, position + 1 - start);
        if (first < last) {
            weigh(walk, i, first, last, cache.value_scales ? tile.scales : nullptr, o);
        } else {
            std::memset(walk.scores + i * TILE, 0, TILE * sizeof(float));
        }
    }
    int64_t first = std::max<int64_t>(0, q.seen_from - start), last = std::min<int64_t>(TILE, q.seen_to - start);
    by_fours(q.count, [&](int64_t i, auto n) {
        add_values<T, n.value>(tile.values, first, last, head_dim, walk.scores + i * TILE,
                               walk.span.sums + i * head_dim);
    });
}

}  // namespace
}  // namespace archerfish::ISA
