// Products with a packed matrix.
//
// An output is summed over the inputs in one order, whatever the number of rows and whoever computes it: rows and
// panels are shared out, inputs never are.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lanes.h"
#include "panels.h"
#include "program.h"
#include "rows.h"
#ifdef ARCHERFISH_TILES
#include "linear_tiles.h"
#endif

namespace archerfish::ISA {
namespace {

constexpr int64_t PREFETCH_BYTES = 4096;
constexpr int64_t BFLOAT16_PREFETCH_BYTES = 12288;  // It is read twice as fast as formats of fewer bits.

// Rows that are worked on at once, and vectors of a panel: as many sums as registers hold.
#ifdef ARCHERFISH_AVX512
constexpr int MOST_ROWS = 6;
template <int ROWS>
constexpr int WIDE = PARTS;
#else
constexpr int MOST_ROWS = 4;
template <int ROWS>
constexpr int WIDE = ROWS == 1   ? PARTS
                     : ROWS == 2 ? PARTS / 2
                                 : PARTS / 4;
#endif

// The sums of ROWS rows with some vectors of a panel, from `first` on, before scales of outputs and bias.
template <int ROWS>
using Sums = Floats[ROWS][WIDE<ROWS>];

template <int ROWS>
inline void clear(Sums<ROWS>& sums) {
    for (int r = 0; r < ROWS; ++r)
        for (int p = 0; p < WIDE<ROWS>; ++p) sums[r][p] = zeros();
}

template <int ROWS>
inline void times_float32(Sums<ROWS>& sums, const Weight& weight, const uint8_t* panel, const Packed& in, int64_t row,
                          int first) {
    const float* w = (const float*)panel;
    const float* x = (const float*)(in.data + row * in.stride);
    int64_t stride = in.stride / sizeof(float);
    for (int64_t k = 0; k < weight.padded_inputs; ++k, w += PANEL) {
        _mm_prefetch((const char*)w + PREFETCH_BYTES, _MM_HINT_T0);
        for (int p = 0; p < WIDE<ROWS>; ++p) {
            Floats part = load(w + (first + p) * LANES);
            for (int r = 0; r < ROWS; ++r) sums[r][p] = fma(part, all(x[r * stride + k]), sums[r][p]);
        }
    }
}

template <int ROWS>
inline void times_bfloat16(Sums<ROWS>& sums, const Weight& weight, const uint8_t* panel, const Packed& in, int64_t row,
                           int first) {
    const uint32_t* x = (const uint32_t*)(in.data + row * in.stride);
    int64_t pairs = weight.padded_inputs / 2, stride = in.stride / sizeof(uint32_t);
    for (int64_t k = 0; k < pairs; ++k, panel += PANEL_ROW) {
        for (int p = 0; p < WIDE<ROWS>; ++p) {
            _mm_prefetch((const char*)panel + BFLOAT16_PREFETCH_BYTES + (first + p) * 64, _MM_HINT_T0);
            Bytes part = load_bytes(panel + (first + p) * 64);
            for (int r = 0; r < ROWS; ++r) sums[r][p] = add_bf16_products(sums[r][p], part, x[r * stride + k]);
        }
    }
}

template <int ROWS>
inline void times_int8(Sums<ROWS>& sums, const Weight&, const uint8_t* panel, const Packed& in, int64_t row,
                       int first) {
    const int32_t* x = (const int32_t*)(in.data + row * in.stride);
    int64_t stride = in.stride / sizeof(int32_t), num_groups = in.width / in.group, fours_a_group = in.group / 4;
    const float* scales = in.scales + row * num_groups;
    const int32_t* totals = in.sums + row * num_groups;
    for (int64_t g = 0; g < num_groups; ++g) {
        Ints counts[ROWS][WIDE<ROWS>];
        for (int r = 0; r < ROWS; ++r)
            for (int p = 0; p < WIDE<ROWS>; ++p) counts[r][p] = all_ints(-128 * totals[r * num_groups + g]);
        const int32_t* group = x + g * fours_a_group;
        for (int64_t k = 0; k < fours_a_group; ++k, panel += PANEL_ROW) {
            for (int p = 0; p < WIDE<ROWS>; ++p) {
                Bytes part = load_bytes(panel + (first + p) * 64);
                _mm_prefetch((const char*)panel + PREFETCH_BYTES + (first + p) * 64, _MM_HINT_T0);
                for (int r = 0; r < ROWS; ++r) counts[r][p] = add_products(counts[r][p], part, group[r * stride + k]);
            }
        }
        for (int r = 0; r < ROWS; ++r)
            for (int p = 0; p < WIDE<ROWS>; ++p)
                sums[r][p] = fma(to_floats(counts[r][p]), all(scales[r * num_groups + g]), sums[r][p]);
    }
}

template <int ROWS, bool ZEROS>
inline void times_int4(Sums<ROWS>& sums, const Weight&, const uint8_t* panel, const Packed& in, int64_t row,
                       int first) {
    const int32_t* x = (const int32_t*)(in.data + row * in.stride);
    int64_t stride = in.stride / sizeof(int32_t), num_groups = in.width / in.group, eights_a_group = in.group / 8;
    const float* scales = in.scales + row * num_groups;
    const int32_t* totals = in.sums + row * num_groups;
    // Whole groups ahead, so that scales are fetched by scales and nibbles by nibbles.
    constexpr int64_t HEAD = (ZEROS ? 3 : 2) * PANEL;
    int64_t group_bytes = HEAD + in.group / 2 * PANEL, ahead = (PREFETCH_BYTES / group_bytes + 1) * group_bytes;
    for (int64_t g = 0; g < num_groups; ++g) {
        const uint16_t* weight_scales = (const uint16_t*)panel;
        for (int64_t i = 0; i < HEAD; i += 64) _mm_prefetch((const char*)panel + ahead + i, _MM_HINT_T0);
        panel += 2 * PANEL;
        Ints counts[ROWS][WIDE<ROWS>];
        for (int r = 0; r < ROWS; ++r) {
            int32_t total = totals[r * num_groups + g];
            for (int p = 0; p < WIDE<ROWS>; ++p)
                counts[r][p] = ZEROS ? load_u8(panel + (first + p) * LANES) * all_ints(-total) : all_ints(-8 * total);
        }
        if (ZEROS) panel += PANEL;
        const int32_t* group = x + g * (in.group / 4);
        for (int64_t k = 0; k < eights_a_group; ++k, panel += PANEL_ROW) {
            for (int p = 0; p < WIDE<ROWS>; ++p) {
                int64_t place = (first + p) * 64;
                _mm_prefetch((const char*)panel + ahead + place, _MM_HINT_T0);
                Bytes both = load_bytes(panel + place);
                Bytes low = low_nibbles(both), high = high_nibbles(both);
                for (int r = 0; r < ROWS; ++r) {
                    counts[r][p] = add_products(counts[r][p], low, group[r * stride + 2 * k]);
                    counts[r][p] = add_products(counts[r][p], high, group[r * stride + 2 * k + 1]);
                }
            }
        }
        for (int p = 0; p < WIDE<ROWS>; ++p) {
            Floats weight_scale = load_f16(weight_scales + (first + p) * LANES);
            for (int r = 0; r < ROWS; ++r) {
                Floats both = weight_scale * all(scales[r * num_groups + g]);
                sums[r][p] = fma(to_floats(counts[r][p]), both, sums[r][p]);
            }
        }
    }
}

// A few rows with some vectors of a panel, into the output.
template <int ROWS>
void linear_part(const Linear& o, int64_t panel_index, int64_t row, int first_part) {
    Sums<ROWS> sums;
    clear<ROWS>(sums);
    const Weight& weight = o.weight;
    const uint8_t* panel = weight.data + panel_index * weight.panel_bytes;
    switch (weight.format) {
        case Format::float32:
            times_float32<ROWS>(sums, weight, panel, o.input, row, first_part);
            break;
        case Format::bfloat16:
            times_bfloat16<ROWS>(sums, weight, panel, o.input, row, first_part);
            break;
        case Format::int8:
            times_int8<ROWS>(sums, weight, panel, o.input, row, first_part);
            break;
        case Format::int4:
            times_int4<ROWS, false>(sums, weight, panel, o.input, row, first_part);
            break;
        case Format::int4_zeros:
            times_int4<ROWS, true>(sums, weight, panel, o.input, row, first_part);
            break;
    }
    for (int p = 0; p < WIDE<ROWS>; ++p)
        for (int r = 0; r < ROWS; ++r)
            store_output(o, row + r, panel_index * PANEL + (first_part + p) * LANES, sums[r][p]);
}

template <int ROWS>
void linear_tile(const Linear& o, int64_t panel_index, int64_t row) {
    for (int first = 0; first < PARTS; first += WIDE<ROWS>) linear_part<ROWS>(o, panel_index, row, first);
}

// At most ROWS rows: by the tile that is made for that many.
template <int ROWS>
inline void linear_some(const Linear& o, int64_t panel, int64_t row, int64_t count) {
    if constexpr (ROWS > 0) {
        if (count == ROWS) return linear_tile<ROWS>(o, panel, row);
        linear_some<ROWS - 1>(o, panel, row, count);
    }
}

// Rows [row, last) with one panel: a block of them at most.
inline void linear_rows(const Linear& o, int64_t panel, int64_t row, int64_t last, [[maybe_unused]] uint8_t* scratch) {
#ifdef ARCHERFISH_TILES
    if (goes_by_tiles(o, last - row)) return linear_by_tiles(o, panel, row, last, scratch);
#endif
    // As few tiles as possible, and even ones: one of a single row would take as long as its panel takes to arrive.
    for (int64_t tiles = (last - row + MOST_ROWS - 1) / MOST_ROWS; tiles > 0; --tiles) {
        int64_t rows = (last - row + tiles - 1) / tiles;
        linear_some<MOST_ROWS>(o, panel, row, rows);
        row += rows;
    }
}

// The first bytes of a panel, for which a thread that comes to it would have to wait.
inline void prefetch_start(const Weight& weight, int64_t panel) {
    if (panel >= num_panels(weight)) return;
    const uint8_t* start = weight.data + panel * weight.panel_bytes;
    int64_t ahead = weight.format == Format::bfloat16 ? BFLOAT16_PREFETCH_BYTES : PREFETCH_BYTES;
    for (int64_t i = 0; i < ahead; i += 64) _mm_prefetch((const char*)start + i, _MM_HINT_T1);
}

int64_t count_linear(const void* operands, const Step& step) {
    const Linear& o = *(const Linear*)operands;
    return (step.num_rows + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK * num_panels(o.weight);
}

void linear(const void* operands, const Step& step, int64_t unit, uint8_t* scratch) {
    const Linear& o = *(const Linear*)operands;
    int64_t panels = num_panels(o.weight);
    // Neighbouring units have neighbouring panels: together the threads read the matrix once for each block of rows.
    int64_t block = unit / panels, panel = unit % panels;
    int64_t row = block * ROWS_PER_BLOCK;
    prefetch_start(o.weight, panel + step.num_threads);  // Likely this thread's next.
    linear_rows(o, panel, row, std::min(step.num_rows, row + ROWS_PER_BLOCK), scratch);
}

}  // namespace
}  // namespace archerfish::ISA
