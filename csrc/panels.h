// What all GEMM kernels share: the sizes of packed matrices, and storing outputs from sums.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lanes.h"
#include "program.h"
#include "rows.h"

namespace archerfish::ISA {
namespace {

constexpr int VECTORS_PER_PANEL = PANEL / LANES;
constexpr int64_t PANEL_ROW_BYTES = 4 * PANEL;  // Bytes of four inputs, or of two in bfloat16.

// Rows that one unit of work multiplies with a panel.
#ifdef ARCHERFISH_TILES
constexpr int64_t ROWS_PER_BLOCK = 256;
#else
constexpr int64_t ROWS_PER_BLOCK = 96;
#endif

inline int64_t num_panels(const WeightMatrix& weight) { return (weight.num_outputs + PANEL - 1) / PANEL; }

// Stores sixteen outputs of a row from their sums, or fewer at the end of the row.
inline void store_output(const LinearArgs& o, int64_t row, int64_t first, Floats sum) {
    int lanes = static_cast<int>(std::min<int64_t>(LANES, o.weight.num_outputs - first));
    if (lanes <= 0) return;
    Floats factor = o.weight.format == Format::int8 ? load_lanes(o.weight.scales + first, lanes) : broadcast(1.0f);
    Floats bias = o.weight.bias ? load_lanes(o.weight.bias + first, lanes) : zeros();
    store_lanes(o.out.data + row * o.out.stride + first, fma(sum, factor, bias), lanes);
}

}  // namespace
}  // namespace archerfish::ISA
