// Attention of some queries to one tile of keys, with an online softmax.
//
// attention.h decides which queries a unit of work has, and which tiles they attend to.
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

constexpr int64_t TILE = 64;    // Keys. A multiple of every block size or a divisor of it.
constexpr int64_t SPLIT = 512;  // Keys that one unit attends to where splits are computed apart: a multiple of TILE.
constexpr float NEG_INF = -3.0e38f;  // Below every score; finite, so that differences stay defined.

// The queries of one unit: consecutive rows of one chunk, with all query heads that share one KV head. And the range of
// keys that any of them attends to.
struct QueryTile {
    int64_t chunk, first_row, num_rows, first_position, head, repeat, count, key_begin, key_end;
    int64_t root;           // Position of the chunk's first token.
    const int32_t* depths;  // Of the rows of a tree, or null.
    const uint8_t* path;    // Of a single row of a tree, or null: where its keys are stored from the root on.
    int64_t row(int64_t query) const { return first_row + query / repeat; }
    int64_t part(int64_t query) const { return head * repeat + query % repeat; }
    int64_t position(int64_t query) const {
        return depths ? root + depths[query / repeat] : first_position + query / repeat;
    }
    int64_t stored_position(int64_t position) const {
        return position < root ? position : root + path[position - root];
    }
    int64_t first_split() const { return key_begin / SPLIT; }
    int64_t num_splits() const { return (key_end + SPLIT - 1) / SPLIT - first_split(); }
};

// -- softmax state ----------------------------------------------------------------------------------------------------

// The online softmax of some queries over the keys so far: the sum of values weighted by exp(score - max_score), and
// the sum of these weights.
struct SoftmaxState {
    float* accumulators;  // [queries][head_dim]
    float* max_scores;    // [queries]
    float* exp_sums;      // [queries]
};

inline void clear(const SoftmaxState& state, int64_t count, int64_t head_dim) {
    std::memset(state.accumulators, 0, count * head_dim * sizeof(float));
    std::memset(state.exp_sums, 0, count * sizeof(float));
    std::fill_n(state.max_scores, count, NEG_INF);
}

inline float exponential_of(float x) {
    float lanes[LANES];
    store(lanes, exponential(broadcast(x)));
    return lanes[0];
}

// Merges the state of a query over other keys into its own.
inline void merge_state(const SoftmaxState& to, int64_t query, const SoftmaxState& from, int64_t from_query,
                        int64_t head_dim) {
    if (from.exp_sums[from_query] == 0.0f) return;  // There it attended to no key.
    float max_score = std::max(to.max_scores[query], from.max_scores[from_query]);
    float to_scale = exponential_of(to.max_scores[query] - max_score);
    float from_scale = exponential_of(from.max_scores[from_query] - max_score);
    to.max_scores[query] = max_score;
    to.exp_sums[query] = to.exp_sums[query] * to_scale + from.exp_sums[from_query] * from_scale;
    float* sums = to.accumulators + query * head_dim;
    const float* more = from.accumulators + from_query * head_dim;
    for (int64_t d = 0; d < head_dim; d += LANES)
        store(sums + d, fma(load(more + d), broadcast(from_scale), load(sums + d) * broadcast(to_scale)));
}

// -- workspace --------------------------------------------------------------------------------------------------------

// The memory of one unit.
struct Workspace {
    float* q;            // [queries][head_dim], scaled.
    float* scores;       // [queries][TILE], then the weights.
    SoftmaxState split;  // Over the current split.
    SoftmaxState total;  // Over all splits so far.
    float* tree_keys;  // [TILE][head_dim] numbers of the cache's format: keys gathered along the path of a tree token,
    float* tree_key_scales;  // [TILE] and their scales.

    // The workspace of the queries from one on.
    Workspace from(int64_t query, int64_t head_dim) const {
        Workspace part = *this;
        part.q += query * head_dim;
        part.scores += query * TILE;
        part.split = {split.accumulators + query * head_dim, split.max_scores + query, split.exp_sums + query};
        return part;
    }
};

inline SoftmaxState take_state(Scratch& scratch, int64_t count, int64_t head_dim) {
    auto* accumulators = scratch.take<float>(count * head_dim);
    auto* max_scores = scratch.take<float>(count);
    return {accumulators, max_scores, scratch.take<float>(count)};
}

// Takes the memory of a unit, and rotates and scales its queries.
inline Workspace load_queries(const AttendArgs& o, const QueryTile& q, Scratch& scratch) {
    int64_t head_dim = o.cache.head_dim;
    Workspace work;
    work.q = scratch.take<float>(q.count * head_dim);
    work.scores = scratch.take<float>(q.count * TILE);
    work.split = take_state(scratch, q.count, head_dim);
    work.total = take_state(scratch, q.count, head_dim);
    work.tree_keys = scratch.take<float>(TILE * head_dim);
    work.tree_key_scales = scratch.take<float>(TILE);
    for (int64_t i = 0; i < q.count; ++i) {
        const float* in = row_part(o.queries, q.row(i), q.part(i));
        float* out = work.q + i * head_dim;
        if (o.angles.data) {
            rotate_part(in, out, head_dim, o.angles, q.row(i));
            in = out;
        }
        for (int64_t d = 0; d < head_dim; d += LANES) store(out + d, load(in + d) * broadcast(o.scale));
    }
    return work;
}
static_assert((MAX_QUERIES_PER_KV_HEAD * (3 * MAX_HEAD_DIM + TILE + 4) + TILE * (MAX_HEAD_DIM + 1)) *
                          static_cast<int64_t>(sizeof(float)) +
                      9 * SCRATCH_ALIGNMENT <=
                  SCRATCH_BYTES,
              "a workspace does not fit in scratch memory");

// -- scores and values ------------------------------------------------------------------------------------------------

// Sums that are computed at once, so that none waits for its own last addition: as many as registers hold.
#ifdef ARCHERFISH_AVX512
constexpr int KEY_TILES_AT_ONCE = 4;
constexpr int VALUE_VECTORS_AT_ONCE = 4;
#else
constexpr int KEY_TILES_AT_ONCE = 1;
constexpr int VALUE_VECTORS_AT_ONCE = 2;
#endif

// Sixteen keys that are stored together, and the index of their scores in the tile.
template <typename T>
struct KeyTile {
    const T* keys;        // [head_dim][16]
    const float* scales;  // Or null.
    int64_t first;
};

template <typename T, int KEY_TILES, int QUERIES>
inline void score_keys(const KeyTile<T>* tiles, int64_t head_dim, const float* q, float* scores) {
    Floats sums[QUERIES][KEY_TILES];
    for (int i = 0; i < QUERIES; ++i)
        for (int t = 0; t < KEY_TILES; ++t) sums[i][t] = zeros();
    for (int64_t d = 0; d < head_dim; ++d) {
        Floats k[KEY_TILES];
        for (int t = 0; t < KEY_TILES; ++t) k[t] = load_cached(tiles[t].keys + d * LANES);
        for (int i = 0; i < QUERIES; ++i)
            for (int t = 0; t < KEY_TILES; ++t) sums[i][t] = fma(k[t], broadcast(q[i * head_dim + d]), sums[i][t]);
    }
    for (int i = 0; i < QUERIES; ++i)
        for (int t = 0; t < KEY_TILES; ++t) {
            Floats sum = tiles[t].scales ? sums[i][t] * load(tiles[t].scales) : sums[i][t];
            store(scores + i * TILE + tiles[t].first, sum);
        }
}

// Adds weighted values of keys [first, last) to NUM_VECTORS vectors of the accumulators.
template <typename T, int QUERIES, int NUM_VECTORS>
inline void accumulate_vectors(const T* const* rows, int64_t first, int64_t last, int64_t head_dim,
                               const float* weights, float* accumulators) {
    Floats sums[QUERIES][NUM_VECTORS];
    for (int i = 0; i < QUERIES; ++i)
        for (int w = 0; w < NUM_VECTORS; ++w) sums[i][w] = load(accumulators + i * head_dim + w * LANES);
    for (int64_t j = first; j < last; ++j) {
        Floats v[NUM_VECTORS];
        for (int w = 0; w < NUM_VECTORS; ++w) v[w] = load_cached(rows[j] + w * LANES);
        for (int i = 0; i < QUERIES; ++i)
            for (int w = 0; w < NUM_VECTORS; ++w) sums[i][w] = fma(v[w], broadcast(weights[i * TILE + j]), sums[i][w]);
    }
    for (int i = 0; i < QUERIES; ++i)
        for (int w = 0; w < NUM_VECTORS; ++w) store(accumulators + i * head_dim + w * LANES, sums[i][w]);
}

template <typename T, int QUERIES>
inline void accumulate_values(const T* const* rows, int64_t first, int64_t last, int64_t head_dim, const float* weights,
                              float* accumulators) {
    const T* parts[TILE];
    for (int64_t d = 0; d < head_dim;) {
        for (int64_t j = first; j < last; ++j) parts[j] = rows[j] + d;
        bool is_wide = d + VALUE_VECTORS_AT_ONCE * LANES <= head_dim;
        if (is_wide)
            accumulate_vectors<T, QUERIES, VALUE_VECTORS_AT_ONCE>(parts, first, last, head_dim, weights,
                                                                  accumulators + d);
        else
            accumulate_vectors<T, QUERIES, 1>(parts, first, last, head_dim, weights, accumulators + d);
        d += (is_wide ? VALUE_VECTORS_AT_ONCE : 1) * LANES;
    }
}

// Turns a query's scores of a tile into weights and rescales its state to the new maximum. Keys outside [first, last)
// are masked.
inline void softmax_update(const Workspace& work, int64_t query, int64_t first, int64_t last, const float* scales,
                           const AttendArgs& o) {
    float* scores = work.scores + query * TILE;
    if (o.softcap != 0.0f)
        for (int64_t j = 0; j < TILE; j += LANES)
            store(scores + j, hyperbolic_tangent(load(scores + j) / broadcast(o.softcap)) * broadcast(o.softcap));
    for (int64_t j = 0; j < first; ++j) scores[j] = NEG_INF;
    for (int64_t j = last; j < TILE; ++j) scores[j] = NEG_INF;
    Floats maxima = broadcast(NEG_INF);
    for (int64_t j = 0; j < TILE; j += LANES) maxima = max(maxima, load(scores + j));
    float old_max = work.split.max_scores[query], new_max = std::max(old_max, reduce_max(maxima));
    Floats exp_sums = zeros();
    for (int64_t j = 0; j < TILE; j += LANES) {
        Floats weight = exponential(load(scores + j) - broadcast(new_max));
        exp_sums = exp_sums + weight;
        // int8 values are dequantized by their weight.
        store(scores + j, scales ? weight * load(scales + j) : weight);
    }
    // A masked key's scale may be left over from another sequence, and be NaN.
    for (int64_t j = 0; j < first; ++j) scores[j] = 0.0f;
    for (int64_t j = last; j < TILE; ++j) scores[j] = 0.0f;
    work.split.max_scores[query] = new_max;
    if (new_max != old_max) {
        float scale = exponential_of(old_max - new_max);
        work.split.exp_sums[query] *= scale;
        float* sums = work.split.accumulators + query * o.cache.head_dim;
        for (int64_t d = 0; d < o.cache.head_dim; d += LANES) store(sums + d, load(sums + d) * broadcast(scale));
    }
    work.split.exp_sums[query] += reduce_sum(exp_sums);
}

// Calls f(first, number) for four queries at a time, and for those that are left.
template <typename Function>
inline void for_each_four(int64_t count, Function f) {
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) f(i, std::integral_constant<int, 4>());
    if (count - i == 3) f(i, std::integral_constant<int, 3>());
    if (count - i == 2) f(i, std::integral_constant<int, 2>());
    if (count - i == 1) f(i, std::integral_constant<int, 1>());
}

template <typename T>
void score_tile(const QueryTile& q, const Workspace& work, const KeyTile<T>* tiles, int count, int64_t head_dim) {
    int t = 0;
    for (; t + KEY_TILES_AT_ONCE <= count; t += KEY_TILES_AT_ONCE)
        for_each_four(q.count, [&](int64_t i, auto n) {
            score_keys<T, KEY_TILES_AT_ONCE, n.value>(tiles + t, head_dim, work.q + i * head_dim,
                                                      work.scores + i * TILE);
        });
    for (; t < count; ++t)
        for_each_four(q.count, [&](int64_t i, auto n) {
            score_keys<T, 1, n.value>(tiles + t, head_dim, work.q + i * head_dim, work.scores + i * TILE);
        });
}

// -- tiles ------------------------------------------------------------------------------------------------------------

// Where the keys and values of a tile are read.
template <typename T>
struct KvTile {
    const T* values[TILE];
    float value_scales[TILE] = {};
    KeyTile<T> key_tiles[TILE / LANES];
    int num_key_tiles = 0;
};

// Where the cache stores the key and value of a position, followed by those of the next ones in the block.
template <typename T>
struct StoredToken {
    StoredToken(const PagedCache& cache, const int32_t* table, int64_t head, int64_t position) {
        int64_t block = table[position / cache.block_size], offset = position % cache.block_size, size = cache.head_dim;
        int64_t first = block * cache.block_size * cache.num_heads * size;
        keys = reinterpret_cast<const T*>(cache.keys) + first +
               (head * cache.block_size + offset / LANES * LANES) * size + offset % LANES;
        values = reinterpret_cast<const T*>(cache.values) + first + (offset * cache.num_heads + head) * size;
        key_scales = scale_of(cache, cache.key_scales, block, head, offset);
        value_scales = scale_of(cache, cache.value_scales, block, head, offset);
    }
    const T* keys;  // [head_dim][16], from the token's column on.
    const T* values;
    const float* key_scales;
    const float* value_scales;
};

// Adds the sixteen keys from a position on, which are stored together, to a tile from index j on.
template <typename T>
void load_key_tile(const PagedCache& cache, const QueryTile& q, const int32_t* table, int64_t position, int64_t j,
                   KvTile<T>& tile) {
    StoredToken<T> stored(cache, table, q.head, position);
    for (int64_t i = 0; i < LANES; ++i) tile.values[j + i] = stored.values + i * cache.num_heads * cache.head_dim;
    if (stored.value_scales) store(tile.value_scales + j, load(stored.value_scales));
    tile.key_tiles[tile.num_key_tiles++] = {stored.keys, stored.key_scales, j};
}

// Replaces those of the last sixteen keys that are stored elsewhere along the path of a tree token.
template <typename T>
void gather_tree_keys(const AttendArgs& o, const QueryTile& q, const Workspace& work, const int32_t* table,
                      int64_t position, KvTile<T>& tile) {
    const PagedCache& cache = o.cache;
    KeyTile<T>& key_tile = tile.key_tiles[tile.num_key_tiles - 1];
    T* keys = reinterpret_cast<T*>(work.tree_keys + key_tile.first * cache.head_dim);
    float* key_scales = work.tree_key_scales + key_tile.first;
    std::memcpy(keys, key_tile.keys, LANES * cache.head_dim * sizeof(T));
    if (key_tile.scales) std::memcpy(key_scales, key_tile.scales, LANES * sizeof(float));
    int64_t last = std::min(position + LANES, q.key_end);
    for (int64_t other = std::max(position, q.root); other < last; ++other) {
        if (q.stored_position(other) == other) continue;
        StoredToken<T> stored(cache, table, q.head, q.stored_position(other));
        int64_t i = other - position;
        for (int64_t d = 0; d < cache.head_dim; ++d) keys[d * LANES + i] = stored.keys[d * LANES];
        tile.values[key_tile.first + i] = stored.values;
        if (key_tile.scales) key_scales[i] = *stored.key_scales;
        if (stored.value_scales) tile.value_scales[key_tile.first + i] = *stored.value_scales;
    }
    key_tile.keys = keys;
    if (key_tile.scales) key_tile.scales = key_scales;
}

// Attends to one tile of keys, [start, start + TILE), of which [key_begin, key_end) is visible to any query.
template <typename T>
void attend_tile(const AttendArgs& o, const QueryTile& q, const Workspace& work, const int32_t* table, int64_t start) {
    const PagedCache& cache = o.cache;
    int64_t head_dim = cache.head_dim;
    KvTile<T> tile;
    for (int64_t j = 0; j < TILE; j += LANES) {
        int64_t position = start + j;
        if (position >= q.key_end || position + LANES <= q.key_begin) continue;
        load_key_tile(cache, q, table, position, j, tile);
        if (q.path && position + LANES > q.root) gather_tree_keys(o, q, work, table, position, tile);
    }
    score_tile<T>(q, work, tile.key_tiles, tile.num_key_tiles, head_dim);
    for (int64_t i = 0; i < q.count; ++i) {
        int64_t position = q.position(i);
        int64_t first = o.window ? std::max<int64_t>(0, position - o.window + 1 - start) : 0;
        int64_t last = std::min<int64_t>(TILE, position + 1 - start);
        if (first < last) {
            softmax_update(work, i, first, last, cache.value_scales ? tile.value_scales : nullptr, o);
        } else {
            std::memset(work.scores + i * TILE, 0, TILE * sizeof(float));
        }
    }
    int64_t first = std::max<int64_t>(0, q.key_begin - start), last = std::min<int64_t>(TILE, q.key_end - start);
    for_each_four(q.count, [&](int64_t i, auto n) {
        accumulate_values<T, n.value>(tile.values, first, last, head_dim, work.scores + i * TILE,
                                      work.split.accumulators + i * head_dim);
    });
}

}  // namespace
}  // namespace archerfish::ISA
