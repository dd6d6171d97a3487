// Matrices packed in panels of 64 outputs: their sizes, and outputs stored from sums.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lanes.h"
#include "program.h"
#include "rows.h"

namespace archerfish::ISA {
namespace {

constexpr int PARTS = PANEL / LANES;      // Vectors of a panel.
constexpr int64_t PANEL_ROW = 4 * PANEL;  // Bytes of four inputs, or of two in bfloat16.

// Rows that are multiplied with a panel before the next panel.
#ifdef ARCHERFISH_TILES
constexpr int64_t ROWS_PER_BLOCK = 256;
#else
constexpr int64_t ROWS_PER_BLOCK = 96;
#endif

inline int64_t num_panels(const Weight& weight) { return (weight.num_outputs + PANEL - 1) / PANEL; }

// Sixteen outputs of a row from their sums. Past the last output there are none.
inline void store_output(const Linear& o, int64_t row, int64_t first, Floats sum) {
    int lanes = (int)std::min<int64_t>(LANES, o.weight.num_outputs - first);
    if (lanes <= 0) return;
    Floats factor = o.weight.format == Format::int8 ? load_lanes(o.weight.scales + first, lanes) : all(1.0f);
    Floats bias = o.weight.bias ? load_lanes(o.weight.bias + first, lanes) : zeros();
    store_lanes(o.out.data + row * o.out.stride + first, fma(sum, factor, bias), lanes);
}

}  // namespace
}  // namespace archerfish::ISA
