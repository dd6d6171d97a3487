// GEMM with a packed matrix.
//
// An output is summed over the inputs in one order, whatever the number of rows and threads: rows and panels are
// divided among units of work, inputs never are.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lanes.h"
#include "panels.h"
#include "program.h"
#include "rows.h"
#ifdef ARCHERFISH_TILES
#include "linear_amx.h"
#endif

namespace archerfish::ISA {
namespace {

constexpr int64_t PREFETCH_BYTES = 4096;
constexpr int64_t BFLOAT16_PREFETCH_BYTES = 12288;  // Panels are read twice as fast as those of fewer bits.

// Rows and vectors of a panel that are computed at once: as many sums as registers hold.
#ifdef ARCHERFISH_AVX512
constexpr int MAX_ROWS_AT_ONCE = 6;
template <int ROWS>
constexpr int NUM_VECTORS = VECTORS_PER_PANEL;
#else
constexpr int MAX_ROWS_AT_ONCE = 4;
template <int ROWS>
constexpr int NUM_VECTORS = ROWS == 1   ? VECTORS_PER_PANEL
                            : ROWS == 2 ? VECTORS_PER_PANEL / 2
                                        : VECTORS_PER_PANEL / 4;
#endif

// Sums of ROWS rows and some vectors of a panel, before scales of outputs and bias. The functions below add to them,
// from vector `first` of the panel on.
template <int ROWS>
using Sums = Floats[ROWS][NUM_VECTORS<ROWS>];

template <int ROWS>
inline void clear(Sums<ROWS>& sums) {
    for (int r = 0; r < ROWS; ++r)
        for (int p = 0; p < NUM_VECTORS<ROWS>; ++p) sums[r][p] = zeros();
}

template <int ROWS>
inline void gemm_float32(Sums<ROWS>& sums, const WeightMatrix& weight, const uint8_t* panel, const PackedRows& in,
                         int64_t row, int first) {
    const float* w = reinterpret_cast<const float*>(panel);
    const float* x = reinterpret_cast<const float*>(in.data + row * in.stride);
    int64_t stride = in.stride / sizeof(float);
    for (int64_t k = 0; k < weight.padded_inputs; ++k, w += PANEL) {
        _mm_prefetch(reinterpret_cast<const char*>(w) + PREFETCH_BYTES, _MM_HINT_T0);
        for (int p = 0; p < NUM_VECTORS<ROWS>; ++p) {
            Floats part = load(w + (first + p) * LANES);
            for (int r = 0; r < ROWS; ++r) sums[r][p] = fma(part, broadcast(x[r * stride + k]), sums[r][p]);
        }
    }
}

template <int ROWS>
inline void gemm_bfloat16(Sums<ROWS>& sums, const WeightMatrix& weight, const uint8_t* panel, const PackedRows& in,
                          int64_t row, int first) {
    const uint32_t* x = reinterpret_cast<const uint32_t*>(in.data + row * in.stride);
    int64_t pairs = weight.padded_inputs / 2, stride = in.stride / sizeof(uint32_t);
    for (int64_t k = 0; k < pairs; ++k, panel += PANEL_ROW_BYTES) {
        for (int p = 0; p < NUM_VECTORS<ROWS>; ++p) {
            _mm_prefetch(reinterpret_cast<const char*>(panel) + BFLOAT16_PREFETCH_BYTES + (first + p) * 64,
                         _MM_HINT_T0);
            Bytes part = load_bytes(panel + (first + p) * 64);
            for (int r = 0; r < ROWS; ++r) sums[r][p] = dot_bf16(sums[r][p], part, x[r * stride + k]);
        }
    }
}

template <int ROWS>
inline void gemm_int8(Sums<ROWS>& sums, const WeightMatrix&, const uint8_t* panel, const PackedRows& in, int64_t row,
                      int first) {
    const int32_t* x = reinterpret_cast<const int32_t*>(in.data + row * in.stride);
    int64_t stride = in.stride / sizeof(int32_t), num_groups = in.width / in.group, fours_per_group = in.group / 4;
    const float* scales = in.scales + row * num_groups;
    const int32_t* totals = in.sums + row * num_groups;
    for (int64_t g = 0; g < num_groups; ++g) {
        Ints counts[ROWS][NUM_VECTORS<ROWS>];
        for (int r = 0; r < ROWS; ++r)
            for (int p = 0; p < NUM_VECTORS<ROWS>; ++p)
                counts[r][p] = broadcast_ints(-128 * totals[r * num_groups + g]);
        const int32_t* group = x + g * fours_per_group;
        for (int64_t k = 0; k < fours_per_group; ++k, panel += PANEL_ROW_BYTES) {
            for (int p = 0; p < NUM_VECTORS<ROWS>; ++p) {
                Bytes part = load_bytes(panel + (first + p) * 64);
                _mm_prefetch(reinterpret_cast<const char*>(panel) + PREFETCH_BYTES + (first + p) * 64, _MM_HINT_T0);
                for (int r = 0; r < ROWS; ++r) counts[r][p] = dot_int8(counts[r][p], part, group[r * stride + k]);
            }
        }
        for (int r = 0; r < ROWS; ++r)
            for (int p = 0; p < NUM_VECTORS<ROWS>; ++p)
                sums[r][p] = fma(to_floats(counts[r][p]), broadcast(scales[r * num_groups + g]), sums[r][p]);
    }
}

template <int ROWS, bool ZEROS>
inline void gemm_int4(Sums<ROWS>& sums, const WeightMatrix&, const uint8_t* panel, const PackedRows& in, int64_t row,
                      int first) {
    const int32_t* x = reinterpret_cast<const int32_t*>(in.data + row * in.stride);
    int64_t stride = in.stride / sizeof(int32_t), num_groups = in.width / in.group, eights_per_group = in.group / 8;
    const float* scales = in.scales + row * num_groups;
    const int32_t* totals = in.sums + row * num_groups;
    // By whole groups, so that where a thread reads scales it prefetches scales.
    constexpr int64_t HEAD = (ZEROS ? 3 : 2) * PANEL;
    int64_t group_bytes = HEAD + in.group / 2 * PANEL, ahead = (PREFETCH_BYTES / group_bytes + 1) * group_bytes;
    for (int64_t g = 0; g < num_groups; ++g) {
        const uint16_t* weight_scales = reinterpret_cast<const uint16_t*>(panel);
        for (int64_t i = 0; i < HEAD; i += 64)
            _mm_prefetch(reinterpret_cast<const char*>(panel) + ahead + i, _MM_HINT_T0);
        panel += 2 * PANEL;
        Ints counts[ROWS][NUM_VECTORS<ROWS>];
        for (int r = 0; r < ROWS; ++r) {
            int32_t total = totals[r * num_groups + g];
            for (int p = 0; p < NUM_VECTORS<ROWS>; ++p)
                counts[r][p] =
                    ZEROS ? load_u8(panel + (first + p) * LANES) * broadcast_ints(-total) : broadcast_ints(-8 * total);
        }
        if (ZEROS) panel += PANEL;
        const int32_t* group = x + g * (in.group / 4);
        for (int64_t k = 0; k < eights_per_group; ++k, panel += PANEL_ROW_BYTES) {
            for (int p = 0; p < NUM_VECTORS<ROWS>; ++p) {
                int64_t offset = (first + p) * 64;
                _mm_prefetch(reinterpret_cast<const char*>(panel) + ahead + offset, _MM_HINT_T0);
                Bytes both = load_bytes(panel + offset);
                Bytes low = low_nibbles(both), high = high_nibbles(both);
                for (int r = 0; r < ROWS; ++r) {
                    counts[r][p] = dot_int8(counts[r][p], low, group[r * stride + 2 * k]);
                    counts[r][p] = dot_int8(counts[r][p], high, group[r * stride + 2 * k + 1]);
                }
            }
        }
        for (int p = 0; p < NUM_VECTORS<ROWS>; ++p) {
            Floats weight_scale = load_f16(weight_scales + (first + p) * LANES);
            for (int r = 0; r < ROWS; ++r) {
                Floats both = weight_scale * broadcast(scales[r * num_groups + g]);
                sums[r][p] = fma(to_floats(counts[r][p]), both, sums[r][p]);
            }
        }
    }
}

// Computes outputs of ROWS rows from some vectors of a panel.
template <int ROWS>
void linear_vectors(const LinearArgs& o, int64_t panel_index, int64_t row, int first) {
    Sums<ROWS> sums;
    clear<ROWS>(sums);
    const WeightMatrix& weight = o.weight;
    const uint8_t* panel = weight.data + panel_index * weight.panel_bytes;
    switch (weight.format) {
        case Format::float32:
            gemm_float32<ROWS>(sums, weight, panel, o.input, row, first);
            break;
        case Format::bfloat16:
            gemm_bfloat16<ROWS>(sums, weight, panel, o.input, row, first);
            break;
        case Format::int8:
            gemm_int8<ROWS>(sums, weight, panel, o.input, row, first);
            break;
        case Format::int4:
            gemm_int4<ROWS, false>(sums, weight, panel, o.input, row, first);
            break;
        case Format::int4_zeros:
            gemm_int4<ROWS, true>(sums, weight, panel, o.input, row, first);
            break;
    }
    for (int p = 0; p < NUM_VECTORS<ROWS>; ++p)
        for (int r = 0; r < ROWS; ++r) store_output(o, row + r, panel_index * PANEL + (first + p) * LANES, sums[r][p]);
}

template <int ROWS>
void linear_rows_at_once(const LinearArgs& o, int64_t panel_index, int64_t row) {
    for (int first = 0; first < VECTORS_PER_PANEL; first += NUM_VECTORS<ROWS>)
        linear_vectors<ROWS>(o, panel_index, row, first);
}

// Computes at most ROWS rows by the function that is compiled for their number.
template <int ROWS>
inline void linear_few_rows(const LinearArgs& o, int64_t panel, int64_t row, int64_t count) {
    if constexpr (ROWS > 0) {
        if (count == ROWS) return linear_rows_at_once<ROWS>(o, panel, row);
        linear_few_rows<ROWS - 1>(o, panel, row, count);
    }
}

// Multiplies rows [row, last), at most a block of them, with one panel.
inline void linear_rows(const LinearArgs& o, int64_t panel, int64_t row, int64_t last,
                        [[maybe_unused]] Scratch scratch) {
#ifdef ARCHERFISH_TILES
    if (uses_tiles(o, last - row)) return linear_with_tiles(o, panel, row, last, scratch);
#endif
    // As few passes over the panel as possible, of equal size: a single row takes as long as reading the panel.
    for (int64_t passes = (last - row + MAX_ROWS_AT_ONCE - 1) / MAX_ROWS_AT_ONCE; passes > 0; --passes) {
        int64_t rows = (last - row + passes - 1) / passes;
        linear_few_rows<MAX_ROWS_AT_ONCE>(o, panel, row, rows);
        row += rows;
    }
}

// Prefetches the first bytes of a panel.
inline void prefetch_start(const WeightMatrix& weight, int64_t panel) {
    if (panel >= num_panels(weight)) return;
    const uint8_t* start = weight.data + panel * weight.panel_bytes;
    int64_t ahead = weight.format == Format::bfloat16 ? BFLOAT16_PREFETCH_BYTES : PREFETCH_BYTES;
    for (int64_t i = 0; i < ahead; i += 64) _mm_prefetch(reinterpret_cast<const char*>(start) + i, _MM_HINT_T1);
}

int64_t count_linear(const void* arguments, const StepView& step) {
    const LinearArgs& o = *static_cast<const LinearArgs*>(arguments);
    return (step.num_rows + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK * num_panels(o.weight);
}

void linear(const void* arguments, const StepView& step, int64_t unit, Scratch scratch) {
    const LinearArgs& o = *static_cast<const LinearArgs*>(arguments);
    int64_t panels = num_panels(o.weight);
    // Neighbouring units have neighbouring panels, so threads read the matrix once for each block of rows.
    int64_t block = unit / panels, panel = unit % panels;
    int64_t row = block * ROWS_PER_BLOCK;
    prefetch_start(o.weight, panel + step.num_threads);  // Likely the next one of this thread.
    linear_rows(o, panel, row, std::min(step.num_rows, row + ROWS_PER_BLOCK), scratch);
}

}  // namespace
}  // namespace archerfish::ISA
