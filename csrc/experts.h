// Feed-forward experts, of which every row chooses a few.
//
// Rows that chose the same expert are brought together, so that its matrices are read once for all of them. Who else is
// there decides where a row's places are, and nothing about the numbers in them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "lanes.h"
#include "linear.h"
#include "panels.h"
#include "program.h"
#include "rows.h"

namespace archerfish::ISA {
namespace {

// -- choosing ---------------------------------------------------------------------------------------------------------

// The likeliest expert that comes after the last one chosen: by falling logit, among equals by rising number.
inline int32_t next_choice(const float* logits, int32_t num_experts, float last, int32_t last_expert) {
    int32_t best = -1;
    for (int32_t expert = 0; expert < num_experts; ++expert) {
        float logit = logits[expert];
        bool is_left = logit < last || (logit == last && expert > last_expert);
        if (is_left && (best < 0 || logit > logits[best])) best = expert;
    }
    return best;
}

// e to the power of each logit less the largest one, into `powers`; their sum. NaN where a logit is no number.
inline float powers_of(const float* logits, int64_t count, float* powers) {
    const Floats never = all(-INFINITY);
    Floats most = never;
    over_lanes(count, [&](int64_t i, int lanes) {
        store(powers + i, never);  // Past the end: these weigh nothing.
        store_lanes(powers + i, load_lanes(logits + i, lanes), lanes);
        most = max(most, load(powers + i));
    });
    Floats peak = all(largest(most)), total = zeros();
    over_lanes(count, [&](int64_t i, int) {
        Floats power = exponential(load(powers + i) - peak);
        store(powers + i, power);
        total = total + power;
    });
    return sum(total);
}

void route(const Route& o, const Step&, int64_t row, uint8_t* scratch) {
    const Routes& routes = o.out;
    const float* logits = part_of(o.logits, row, 0);
    float* powers = (float*)scratch;
    int32_t* chosen = routes.chosen + row * routes.num_chosen;
    float* weights = routes.weights + row * routes.num_chosen;
    float total = powers_of(logits, routes.num_experts, powers);
    if (total != total) {  // Any experts do: what they are weighed with spoils the row, as it should.
        for (int32_t slot = 0; slot < routes.num_chosen; ++slot) {
            chosen[slot] = slot;
            weights[slot] = total;
        }
        return;
    }
    float last = INFINITY, sum_of_chosen = 0.0f;
    int32_t expert = -1;
    for (int32_t slot = 0; slot < routes.num_chosen; ++slot) {
        expert = next_choice(logits, routes.num_experts, last, expert);
        last = logits[expert];
        chosen[slot] = expert;
        weights[slot] = powers[expert] / total;
        sum_of_chosen += weights[slot];
    }
    if (o.normalize)
        for (int32_t slot = 0; slot < routes.num_chosen; ++slot) weights[slot] /= sum_of_chosen;
}

// -- bringing together ------------------------------------------------------------------------------------------------

int64_t count_group(const void*, const Step& step) { return step.num_rows ? 1 : 0; }

void group(const void* operands, const Step& step, int64_t, uint8_t* scratch) {
    const Group& o = *(const Group*)operands;
    const Routes& routes = o.routes;
    int64_t num_places = step.num_rows * routes.num_chosen, num_blocks = 0;
    int32_t* next = (int32_t*)scratch;  // Of each expert: how many chose it, then its next free place.
    std::memset(next, 0, routes.num_experts * sizeof(int32_t));
    for (int64_t i = 0; i < num_places; ++i) ++next[routes.chosen[i]];
    int32_t first = 0;
    for (int32_t expert = 0; expert < routes.num_experts; ++expert) {
        int32_t end = first + next[expert];
        next[expert] = first;
        while (first < end) {
            Block block = {expert, first, std::min<int32_t>(ROWS_PER_BLOCK, end - first)};
            o.out.blocks[num_blocks++] = block;
            first += block.count;
        }
    }
    for (int64_t i = 0; i < num_places; ++i) o.out.places[i] = next[routes.chosen[i]]++;
    *o.out.num_blocks = num_blocks;
}

void gather(const Gather& o, const Step&, int64_t row, uint8_t*) {
    const int32_t* places = o.groups.places + row * o.routes.num_chosen;
    int64_t num_groups = o.input.format == Format::int8 ? o.input.width / o.input.group : 0;
    for (int32_t slot = 0; slot < o.routes.num_chosen; ++slot) {
        int64_t place = places[slot];
        std::memcpy(o.out.data + place * o.out.stride, o.input.data + row * o.input.stride, o.input.stride);
        for (int64_t g = 0; g < num_groups; ++g) {
            o.out.scales[place * num_groups + g] = o.input.scales[row * num_groups + g];
            o.out.sums[place * num_groups + g] = o.input.sums[row * num_groups + g];
        }
    }
}

// -- products ---------------------------------------------------------------------------------------------------------

inline Weight weight_of(const ExpertWeights& weights, int64_t expert) {
    Weight weight = weights.first;
    weight.data += expert * weights.data_stride;
    if (weight.scales) weight.scales += expert * weights.scale_stride;
    return weight;
}

int64_t count_expert_linear(const void* operands, const Step& step) {
    const ExpertLinear& o = *(const ExpertLinear*)operands;
    return step.num_rows ? *o.groups.num_blocks * num_panels(o.weights.first) : 0;
}

void expert_linear(const void* operands, const Step&, int64_t unit, uint8_t* scratch) {
    const ExpertLinear& o = *(const ExpertLinear*)operands;
    int64_t panels = num_panels(o.weights.first);
    const Block& block = o.groups.blocks[unit / panels];
    Linear linear = {o.out, o.input, weight_of(o.weights, block.expert)};
    linear_rows(linear, unit % panels, block.first, block.first + block.count, scratch);
}

// In the order of the choice, which is the row's own.
void combine(const Combine& o, const Step&, int64_t row, uint8_t*) {
    const int32_t* places = o.groups.places + row * o.routes.num_chosen;
    const float* weights = o.routes.weights + row * o.routes.num_chosen;
    float* out = part_of(o.out, row, 0);
    over_lanes(o.out.width, [&](int64_t i, int lanes) {
        Floats total = zeros();
        for (int32_t slot = 0; slot < o.routes.num_chosen; ++slot)
            total = fma(load_lanes(part_of(o.input, places[slot], 0) + i, lanes), all(weights[slot]), total);
        store_lanes(out + i, total, lanes);
    });
}

}  // namespace
}  // namespace archerfish::ISA
