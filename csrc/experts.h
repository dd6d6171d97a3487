// Mixture of experts: routing rows, sorting them by expert, and combining what their experts computed.
//
// Rows with the same expert are sorted next to each other, so that its matrices are read once for all of them. Other
// rows of the step change where a row is sorted to, and nothing about its numbers.
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

// -- routing ----------------------------------------------------------------------------------------------------------

// The best expert after the last one: by descending logit, then by ascending number.
inline int32_t next_best_expert(const float* logits, int32_t num_experts, float last, int32_t last_expert) {
    int32_t best = -1;
    for (int32_t expert = 0; expert < num_experts; ++expert) {
        float logit = logits[expert];
        bool is_after = logit < last || (logit == last && expert > last_expert);
        if (is_after && (best < 0 || logit > logits[best])) best = expert;
    }
    return best;
}

// Writes exp(logit - largest logit) to `exps` and returns their sum, NaN if any logit is NaN.
inline float exp_of_logits(const float* logits, int64_t count, float* exps) {
    const Floats lowest = broadcast(-INFINITY);
    Floats peaks = lowest;
    for_each_vector(count, [&](int64_t i, int lanes) {
        store(exps + i, lowest);  // Lanes past the end add nothing to the sum.
        store_lanes(exps + i, load_lanes(logits + i, lanes), lanes);
        peaks = max(peaks, load(exps + i));
    });
    Floats peak = broadcast(reduce_max(peaks)), total = zeros();
    for_each_vector(count, [&](int64_t i, int) {
        Floats value = exponential(load(exps + i) - peak);
        store(exps + i, value);
        total = total + value;
    });
    return reduce_sum(total);
}

void route(const RouteArgs& o, const StepView&, int64_t row, Scratch scratch) {
    const ExpertRoutes& routes = o.out;
    const float* logits = row_part(o.logits, row, 0);
    float* exps = scratch.take<float>((routes.num_experts + LANES - 1) / LANES * LANES);
    int32_t* expert_ids = routes.expert_ids + row * routes.top_k;
    float* weights = routes.weights + row * routes.top_k;
    float total = exp_of_logits(logits, routes.num_experts, exps);
    if (total != total) {  // Any experts will do: their weights make the row NaN.
        for (int32_t slot = 0; slot < routes.top_k; ++slot) {
            expert_ids[slot] = slot;
            weights[slot] = total;
        }
        return;
    }
    float last = INFINITY, sum_of_weights = 0.0f;
    int32_t expert = -1;
    for (int32_t slot = 0; slot < routes.top_k; ++slot) {
        expert = next_best_expert(logits, routes.num_experts, last, expert);
        last = logits[expert];
        expert_ids[slot] = expert;
        weights[slot] = exps[expert] / total;
        sum_of_weights += weights[slot];
    }
    if (o.normalize)
        for (int32_t slot = 0; slot < routes.top_k; ++slot) weights[slot] /= sum_of_weights;
}

static_assert(MAX_EXPERTS * static_cast<int64_t>(sizeof(float)) <= SCRATCH_BYTES,
              "experts do not fit in scratch memory");

// -- sorting by expert ------------------------------------------------------------------------------------------------

int64_t count_group(const void*, const StepView& step) { return step.num_rows ? 1 : 0; }

void group(const void* arguments, const StepView& step, int64_t, Scratch scratch) {
    const GroupArgs& o = *static_cast<const GroupArgs*>(arguments);
    const ExpertRoutes& routes = o.routes;
    int64_t num_sorted = step.num_rows * routes.top_k, num_blocks = 0;
    // Number of rows of each expert, then the next sorted index of each.
    int32_t* next = scratch.take<int32_t>(routes.num_experts);
    std::memset(next, 0, routes.num_experts * sizeof(int32_t));
    for (int64_t i = 0; i < num_sorted; ++i) ++next[routes.expert_ids[i]];
    int32_t first = 0;
    for (int32_t expert = 0; expert < routes.num_experts; ++expert) {
        int32_t end = first + next[expert];
        next[expert] = first;
        while (first < end) {
            ExpertBlock block = {expert, first, std::min<int32_t>(ROWS_PER_BLOCK, end - first)};
            o.out.blocks[num_blocks++] = block;
            first += block.count;
        }
    }
    for (int64_t i = 0; i < num_sorted; ++i) o.out.sorted_indices[i] = next[routes.expert_ids[i]]++;
    *o.out.num_blocks = num_blocks;
}

void gather(const GatherArgs& o, const StepView&, int64_t row, Scratch) {
    const int32_t* sorted_indices = o.groups.sorted_indices + row * o.routes.top_k;
    int64_t num_groups = o.input.format == Format::int8 ? o.input.width / o.input.group : 0;
    for (int32_t slot = 0; slot < o.routes.top_k; ++slot) {
        int64_t index = sorted_indices[slot];
        std::memcpy(o.out.data + index * o.out.stride, o.input.data + row * o.input.stride, o.input.stride);
        for (int64_t g = 0; g < num_groups; ++g) {
            o.out.scales[index * num_groups + g] = o.input.scales[row * num_groups + g];
            o.out.sums[index * num_groups + g] = o.input.sums[row * num_groups + g];
        }
    }
}

// -- GEMM -------------------------------------------------------------------------------------------------------------

inline WeightMatrix weight_of(const ExpertWeights& weights, int64_t expert) {
    WeightMatrix weight = weights.first;
    weight.data += expert * weights.data_stride;
    if (weight.scales) weight.scales += expert * weights.scale_stride;
    return weight;
}

int64_t count_expert_linear(const void* arguments, const StepView& step) {
    const ExpertLinearArgs& o = *static_cast<const ExpertLinearArgs*>(arguments);
    return step.num_rows ? *o.groups.num_blocks * num_panels(o.weights.first) : 0;
}

void expert_linear(const void* arguments, const StepView&, int64_t unit, Scratch scratch) {
    const ExpertLinearArgs& o = *static_cast<const ExpertLinearArgs*>(arguments);
    int64_t panels = num_panels(o.weights.first);
    const ExpertBlock& block = o.groups.blocks[unit / panels];
    LinearArgs linear = {o.out, o.input, weight_of(o.weights, block.expert)};
    linear_rows(linear, unit % panels, block.first, block.first + block.count, scratch);
}

// Summed in the order of the row's experts, which does not depend on other rows.
void combine(const CombineArgs& o, const StepView&, int64_t row, Scratch) {
    const int32_t* sorted_indices = o.groups.sorted_indices + row * o.routes.top_k;
    const float* weights = o.routes.weights + row * o.routes.top_k;
    float* out = row_part(o.out, row, 0);
    for_each_vector(o.out.width, [&](int64_t i, int lanes) {
        Floats total = zeros();
        for (int32_t slot = 0; slot < o.routes.top_k; ++slot)
            total =
                fma(load_lanes(row_part(o.input, sorted_indices[slot], 0) + i, lanes), broadcast(weights[slot]), total);
        store_lanes(out + i, total, lanes);
    });
}

}  // namespace
}  // namespace archerfish::ISA
