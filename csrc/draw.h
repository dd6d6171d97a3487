// Draws the next token of each row by its temperature, filters and seeded Gumbel noise.
//
// The largest of logits / temperature + Gumbel noise is a draw from their softmax; the noise is a function of seed,
// position and token. Filters are thresholds that are found by bisection, so that no vocabulary is sorted.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lanes.h"
#include "program.h"
#include "rows.h"

namespace archerfish::ISA {
namespace {

constexpr float NEGLIGIBLE = 32.0f;  // A token so far below the peak is never drawn, whatever its noise.
constexpr int64_t MAX_SORTED = 128;  // Bisection ends with so many values, which are sorted.

// -- noise ------------------------------------------------------------------------------------------------------------

constexpr uint32_t GOLDEN = 0x9E3779B9, MIX_1 = 0x7FEB352D, MIX_2 = 0x846CA68B;

inline uint32_t mix(uint32_t x) {
    x = (x ^ x >> 16) * MIX_1;
    x = (x ^ x >> 15) * MIX_2;
    return x ^ x >> 16;
}
inline Ints mix(Ints x) {
    x = (x ^ shift_right<16>(x)) * broadcast_ints(static_cast<int32_t>(MIX_1));
    x = (x ^ shift_right<15>(x)) * broadcast_ints(static_cast<int32_t>(MIX_2));
    return x ^ shift_right<16>(x);
}

struct NoiseKeys {
    uint32_t first, second;
};
inline NoiseKeys noise_keys(uint64_t seed, int64_t position) {
    uint32_t low_position = static_cast<uint32_t>(position);
    uint32_t first = mix(mix(static_cast<uint32_t>(seed) ^ GOLDEN) + low_position);
    return {first, mix(mix(static_cast<uint32_t>(seed >> 32) + first) ^ low_position)};
}

// Noise of sixteen tokens, the first of which is `token`.
inline Floats noise(NoiseKeys keys, int32_t token) {
    Ints bits = mix(iota(token) * broadcast_ints(static_cast<int32_t>(GOLDEN)) +
                    broadcast_ints(static_cast<int32_t>(keys.first)));
    bits = mix(bits ^ broadcast_ints(static_cast<int32_t>(keys.second)));
    // Uniform between 0 and 1, with the finest resolution near 0, which becomes the largest noise.
    Floats whole = to_floats(bits);
    whole = whole + select_less(whole, zeros(), broadcast(4294967296.0f), zeros());
    Floats uniform = min((whole + broadcast(0.5f)) * broadcast(2.3283064e-10f), broadcast(0.99999994f));
    // -log(1 - u), with a correction for the rounding of 1 - u, so that it is exact where u is small.
    Floats rest = broadcast(1.0f) - uniform;
    Floats exponent = zeros() - logarithm(rest) * (uniform / (broadcast(1.0f) - rest));
    exponent = select_less(rest, broadcast(1.0f), exponent, uniform);
    return zeros() - logarithm(exponent);
}

// -- filters ----------------------------------------------------------------------------------------------------------

// Scores of a row, padded with -inf to whole vectors, and the probability mass of each: its share, or 1 without shares.
struct Scores {
    const float* values;
    const float* shares;
    int64_t count;
};

struct Mass {
    float share;
    int64_t count;
};
inline Mass mass_above(const Scores& scores, float bound) {
    Floats total = zeros();
    int64_t count = 0;
    for (int64_t i = 0; i < scores.count; i += LANES) {
        Floats value = load(scores.values + i);
        count += __builtin_popcount(mask_greater(value, broadcast(bound)));
        if (scores.shares) total = total + select_less(broadcast(bound), value, load(scores.shares + i), zeros());
    }
    return {scores.shares ? reduce_sum(total) : static_cast<float>(count), count};
}

// The smallest value in the smallest set of largest values whose mass reaches `required`. Looked for above `low` and up
// to `high`.
float nucleus_bound(const Scores& scores, float low, float high, float required) {
    Mass total = mass_above(scores, low);
    if (total.share < required) return low;
    int64_t num_low = total.count, num_high = 0;  // Values above `low` and above `high`.
    float share_high = 0.0f;
    while (num_low - num_high > MAX_SORTED) {
        float middle = low + (high - low) * 0.5f;
        if (!(low < middle && middle < high)) return high;  // All values that are left are equal.
        Mass mass = mass_above(scores, middle);
        if (mass.share >= required) {
            low = middle;
            num_low = mass.count;
        } else {
            high = middle;
            num_high = mass.count;
            share_high = mass.share;
        }
    }
    struct Value {
        float value, share;
    } candidates[MAX_SORTED];
    int64_t num_candidates = 0;
    for (int64_t i = 0; i < scores.count; i += LANES) {
        Floats value = load(scores.values + i);
        uint32_t inside = mask_greater(value, broadcast(low)) & ~mask_greater(value, broadcast(high));
        for (; inside; inside &= inside - 1) {
            int64_t index = i + __builtin_ctz(inside);
            candidates[num_candidates++] = {scores.values[index], scores.shares ? scores.shares[index] : 1.0f};
        }
    }
    std::stable_sort(candidates, candidates + num_candidates,
                     [](const Value& a, const Value& b) { return a.value > b.value; });
    float last = high;
    for (int64_t i = 0; i < num_candidates && (i == 0 || share_high < required); ++i) {
        last = candidates[i].value;
        share_high += candidates[i].share;
    }
    return last;
}

// The lowest score that may be drawn. `shares` is a buffer for `count` numbers.
float filter_threshold(const DrawRow& params, const float* values, float* shares, int64_t count, float peak) {
    float lowest = peak - NEGLIGIBLE;
    if (params.min_p > 0.0f) lowest = std::max(lowest, peak + std::log(params.min_p));
    if (params.top_k > 0 && params.top_k < count)
        lowest = std::max(
            lowest, nucleus_bound({values, nullptr, count}, peak - NEGLIGIBLE, peak, static_cast<float>(params.top_k)));
    if (params.top_p >= 1.0f) return lowest;
    Floats total = zeros();
    for (int64_t i = 0; i < count; i += LANES) {
        Floats value = load(values + i);
        Floats share = select_less(value, broadcast(lowest), zeros(), exponential(value - broadcast(peak)));
        store(shares + i, share);
        total = total + share;
    }
    return std::max(lowest,
                    nucleus_bound({values, shares, count}, peak - NEGLIGIBLE, peak, params.top_p * reduce_sum(total)));
}

// -- the draw ---------------------------------------------------------------------------------------------------------

// The largest logit, NaN if any logit is NaN.
inline float max_logit(const float* logits, int64_t width) {
    Floats peaks = broadcast(-INFINITY);
    uint32_t nan_lanes = 0;
    for_each_vector(width, [&](int64_t i, int lanes) {
        Floats x = load_lanes(logits + i, lanes);
        if (lanes < LANES) {
            float rest[LANES];
            store(rest, broadcast(-INFINITY));
            store_partial(rest, x, lanes);
            x = load(rest);
        }
        nan_lanes |= mask_nan(x);
        peaks = max(peaks, x);
    });
    return nan_lanes ? NAN : reduce_max(peaks);
}

// The index of the first logit that equals the largest one.
inline int64_t argmax_at(const float* logits, int64_t width, float peak) {
    int64_t i = 0;
    while (i + LANES <= width && !mask_greater_equal(load(logits + i), broadcast(peak))) i += LANES;
    while (logits[i] < peak) ++i;
    return i;
}

int64_t gumbel_argmax(const DrawRow& params, const float* values, int64_t count, float threshold) {
    NoiseKeys keys = noise_keys(params.seed, params.position);
    Floats best = broadcast(-INFINITY);
    Ints tokens = broadcast_ints(0);
    for (int64_t i = 0; i < count; i += LANES) {
        Floats value = load(values + i);
        if (!mask_greater_equal(value, broadcast(threshold))) continue;
        Floats score = select_less(value, broadcast(threshold), broadcast(-INFINITY),
                                   value + noise(keys, static_cast<int32_t>(i)));
        tokens = bits_of(select_less(best, score, floats_of(iota(static_cast<int32_t>(i))), floats_of(tokens)));
        best = max(score, best);
    }
    float scores[LANES];
    int32_t ids[LANES];
    store(scores, best);
    store_ints(ids, tokens);
    int best_lane = 0;
    for (int lane = 1; lane < LANES; ++lane) {
        bool is_better =
            scores[lane] > scores[best_lane] || (scores[lane] == scores[best_lane] && ids[lane] < ids[best_lane]);
        if (is_better) best_lane = lane;
    }
    return ids[best_lane];
}

static_assert(2 * MAX_VOCAB_SIZE * static_cast<int64_t>(sizeof(float)) <= SCRATCH_BYTES,
              "the draw does not fit in scratch memory");

int64_t count_draw(const void*, const StepView& step) { return step.num_rows; }

void draw(const void* arguments, const StepView&, int64_t row, Scratch scratch) {
    const DrawArgs& o = *static_cast<const DrawArgs*>(arguments);
    const DrawRow& params = o.rows[row];
    const float* logits = row_part(o.logits, row, 0);
    int64_t width = o.logits.width, count = (width + LANES - 1) / LANES * LANES;
    float peak = o.max_logits[row] = max_logit(logits, width);
    o.tokens[row] = 0;
    if (!std::isfinite(peak)) return;
    if (params.temperature == 0.0f) {
        o.tokens[row] = argmax_at(logits, width, peak);
        return;
    }
    float *values = scratch.take<float>(count), *shares = scratch.take<float>(count);
    for_each_vector(width, [&](int64_t i, int lanes) {
        store(values + i, broadcast(-INFINITY));
        store_lanes(values + i, load_lanes(logits + i, lanes) / broadcast(params.temperature), lanes);
    });
    float threshold = filter_threshold(params, values, shares, count, peak / params.temperature);
    o.tokens[row] = gumbel_argmax(params, values, count, threshold);
}

}  // namespace
}  // namespace archerfish::ISA
