// The next token of each row, by its own temperature, filters and seeded noise.
//
// The largest of logits / temperature + Gumbel noise is a draw from their softmax; the noise is a function of seed,
// position and token. Filters are thresholds, found by halving: no vocabulary is ever sorted.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lanes.h"
#include "program.h"
#include "rows.h"

namespace archerfish::ISA {
namespace {

constexpr float NEGLIGIBLE =
    32.0f;                    // So far below the peak no noise lifts a token over it, and all together weigh nothing.
constexpr int64_t FEW = 128;  // Values that are sorted once no more are left.

// -- noise ------------------------------------------------------------------------------------------------------------

constexpr uint32_t GOLDEN = 0x9E3779B9, MIX_1 = 0x7FEB352D, MIX_2 = 0x846CA68B;

inline uint32_t mixed(uint32_t x) {
    x = (x ^ x >> 16) * MIX_1;
    x = (x ^ x >> 15) * MIX_2;
    return x ^ x >> 16;
}
inline Ints mixed(Ints x) {
    x = (x ^ shifted_right<16>(x)) * all_ints((int32_t)MIX_1);
    x = (x ^ shifted_right<15>(x)) * all_ints((int32_t)MIX_2);
    return x ^ shifted_right<16>(x);
}

struct NoiseKeys {
    uint32_t first, second;
};
inline NoiseKeys noise_keys(uint64_t seed, int64_t position) {
    uint32_t place = (uint32_t)position;
    uint32_t first = mixed(mixed((uint32_t)seed ^ GOLDEN) + place);
    return {first, mixed(mixed((uint32_t)(seed >> 32) + first) ^ place)};
}

// Of sixteen tokens, the first of which is `token`.
inline Floats noise(NoiseKeys keys, int32_t token) {
    Ints bits = mixed(counted_from(token) * all_ints((int32_t)GOLDEN) + all_ints((int32_t)keys.first));
    bits = mixed(bits ^ all_ints((int32_t)keys.second));
    // Uniform between 0 and 1, finest near 0: that end becomes the largest noise.
    Floats whole = to_floats(bits);
    whole = whole + where_less(whole, zeros(), all(4294967296.0f), zeros());
    Floats uniform = min((whole + all(0.5f)) * all(2.3283064e-10f), all(0.99999994f));
    // -log(1 - u), exact where u is small: what 1 - u lost to rounding is put back.
    Floats rest = all(1.0f) - uniform;
    Floats exponent = zeros() - logarithm(rest) * (uniform / (all(1.0f) - rest));
    exponent = where_less(rest, all(1.0f), exponent, uniform);
    return zeros() - logarithm(exponent);
}

// -- filters ----------------------------------------------------------------------------------------------------------

// A row's scores, filled up with -inf to whole vectors, and what each counts: its share, or without shares 1.
struct Scores {
    const float* values;
    const float* shares;
    int64_t count;
};

struct Above {
    float share;
    int64_t count;
};
inline Above above(const Scores& scores, float bound) {
    Floats total = zeros();
    int64_t count = 0;
    for (int64_t i = 0; i < scores.count; i += LANES) {
        Floats value = load(scores.values + i);
        count += __builtin_popcount(lanes_above(value, all(bound)));
        if (scores.shares) total = total + where_less(all(bound), value, load(scores.shares + i), zeros());
    }
    return {scores.shares ? sum(total) : (float)count, count};
}

// The last value inside: of those before it, likeliest first, the shares do not yet come to `wanted`. Looked for above
// `low` and not above `high`.
float last_inside(const Scores& scores, float low, float high, float wanted) {
    Above all_of_them = above(scores, low);
    if (all_of_them.share < wanted) return low;
    int64_t num_low = all_of_them.count, num_high = 0;  // Above either.
    float share_high = 0.0f;
    while (num_low - num_high > FEW) {
        float middle = low + (high - low) * 0.5f;
        if (!(low < middle && middle < high)) return high;  // All that are left are equal.
        Above found = above(scores, middle);
        if (found.share >= wanted) {
            low = middle;
            num_low = found.count;
        } else {
            high = middle;
            num_high = found.count;
            share_high = found.share;
        }
    }
    struct Value {
        float value, share;
    } few[FEW];
    int64_t num_few = 0;
    for (int64_t i = 0; i < scores.count; i += LANES) {
        Floats value = load(scores.values + i);
        uint32_t inside = lanes_above(value, all(low)) & ~lanes_above(value, all(high));
        for (; inside; inside &= inside - 1) {
            int64_t place = i + __builtin_ctz(inside);
            few[num_few++] = {scores.values[place], scores.shares ? scores.shares[place] : 1.0f};
        }
    }
    std::stable_sort(few, few + num_few, [](const Value& a, const Value& b) { return a.value > b.value; });
    float last = high;
    for (int64_t i = 0; i < num_few && (i == 0 || share_high < wanted); ++i) {
        last = few[i].value;
        share_high += few[i].share;
    }
    return last;
}

// The lowest score that may be drawn. `shares` is room for as many numbers as there are scores.
float threshold_of(const DrawRow& asked, const float* values, float* shares, int64_t count, float peak) {
    float lowest = peak - NEGLIGIBLE;
    if (asked.min_p > 0.0f) lowest = std::max(lowest, peak + std::log(asked.min_p));
    if (asked.top_k > 0 && asked.top_k < count)
        lowest = std::max(lowest, last_inside({values, nullptr, count}, peak - NEGLIGIBLE, peak, (float)asked.top_k));
    if (asked.top_p >= 1.0f) return lowest;
    Floats total = zeros();
    for (int64_t i = 0; i < count; i += LANES) {
        Floats value = load(values + i);
        Floats share = where_less(value, all(lowest), zeros(), exponential(value - all(peak)));
        store(shares + i, share);
        total = total + share;
    }
    return std::max(lowest, last_inside({values, shares, count}, peak - NEGLIGIBLE, peak, asked.top_p * sum(total)));
}

// -- the draw ---------------------------------------------------------------------------------------------------------

// NaN where any logit is.
inline float peak_of(const float* logits, int64_t width) {
    Floats most = all(-INFINITY);
    uint32_t broken = 0;
    over_lanes(width, [&](int64_t i, int lanes) {
        Floats x = load_lanes(logits + i, lanes);
        if (lanes < LANES) {
            float rest[LANES];
            store(rest, all(-INFINITY));
            store_some(rest, x, lanes);
            x = load(rest);
        }
        broken |= lanes_of_nan(x);
        most = max(most, x);
    });
    return broken ? NAN : largest(most);
}

// The first of the largest.
inline int64_t first_at(const float* logits, int64_t width, float peak) {
    int64_t i = 0;
    while (i + LANES <= width && !lanes_not_below(load(logits + i), all(peak))) i += LANES;
    while (logits[i] < peak) ++i;
    return i;
}

int64_t noisiest(const DrawRow& asked, const float* values, int64_t count, float threshold) {
    NoiseKeys keys = noise_keys(asked.seed, asked.position);
    Floats best = all(-INFINITY);
    Ints tokens = all_ints(0);
    for (int64_t i = 0; i < count; i += LANES) {
        Floats value = load(values + i);
        if (!lanes_not_below(value, all(threshold))) continue;
        Floats score = where_less(value, all(threshold), all(-INFINITY), value + noise(keys, (int32_t)i));
        tokens = bits_of(where_less(best, score, floats_of(counted_from((int32_t)i)), floats_of(tokens)));
        best = max(score, best);
    }
    float scores[LANES];
    int32_t ids[LANES];
    store(scores, best);
    store_ints(ids, tokens);
    int winner = 0;
    for (int lane = 1; lane < LANES; ++lane) {
        bool is_better = scores[lane] > scores[winner] || (scores[lane] == scores[winner] && ids[lane] < ids[winner]);
        if (is_better) winner = lane;
    }
    return ids[winner];
}

int64_t count_draw(const void*, const Step& step) { return step.num_rows; }

void draw(const void* operands, const Step&, int64_t row, uint8_t* scratch) {
    const Draw& o = *(const Draw*)operands;
    const DrawRow& asked = o.rows[row];
    const float* logits = part_of(o.logits, row, 0);
    int64_t width = o.logits.width, count = (width + LANES - 1) / LANES * LANES;
    float peak = o.peaks[row] = peak_of(logits, width);
    o.tokens[row] = 0;
    if (!std::isfinite(peak)) return;
    if (asked.temperature == 0.0f) {
        o.tokens[row] = first_at(logits, width, peak);
        return;
    }
    float *values = (float*)scratch, *shares = values + count;
    over_lanes(width, [&](int64_t i, int lanes) {
        store(values + i, all(-INFINITY));
        store_lanes(values + i, load_lanes(logits + i, lanes) / all(asked.temperature), lanes);
    });
    float threshold = threshold_of(asked, values, shares, count, peak / asked.temperature);
    o.tokens[row] = noisiest(asked, values, count, threshold);
}

}  // namespace
}  // namespace archerfish::ISA
