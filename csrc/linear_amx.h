// GEMM of many rows with matrix tiles (AMX), from the same packed matrices.
//
// Sums of bytes are exact integers, so these kernels give the bits of linear.h and are used from MIN_TILE_ROWS rows on.
// Tiles round sums of bfloat16 in an order of their own, so they compute every number of rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "amx_tiles.h"
#include "lanes.h"
#include "panels.h"
#include "program.h"

namespace archerfish::ISA {
namespace {

constexpr int64_t TILE_ROWS = 16;
constexpr int64_t TILE_BYTES = 64;  // Bytes of a tile's row.
constexpr int64_t MIN_TILE_ROWS = 16;
constexpr int64_t INPUTS_AT_ONCE =
    512;  // Of a panel: so many stay in the L1 cache while all rows are multiplied with them.
constexpr int64_t TILE_SUMS_BYTES = ROWS_PER_BLOCK * PANEL * sizeof(float);

// Tiles 0 to 3 hold sums: of one tile of rows and four of outputs, or of two tiles of rows and two of outputs.
constexpr int ROWS_TILE = 4;     // And 5.
constexpr int WEIGHTS_TILE = 6;  // And 7, alternately.

template <int ROW_TILES>
constexpr int COLUMN_TILES = 4 / ROW_TILES;

template <int ROW_TILES>
void configure_tiles_for(int64_t num_rows, int64_t depth_bytes) {
    TileShapes shapes;
    for (int r = 0; r < ROW_TILES; ++r) {
        int64_t rows = std::min(TILE_ROWS, num_rows - r * TILE_ROWS);
        for (int c = 0; c < COLUMN_TILES<ROW_TILES>; ++c) shapes.set(r * COLUMN_TILES<ROW_TILES> + c, rows, TILE_BYTES);
        shapes.set(ROWS_TILE + r, rows, depth_bytes);
    }
    for (int c = 0; c < 2; ++c) shapes.set(WEIGHTS_TILE + c, depth_bytes / 4, TILE_BYTES);
    configure_tiles(shapes);
}

template <bool BF16, int C, int A, int B>
inline void tile_dot() {
    if constexpr (BF16)
        tile_dot_bf16<C, A, B>();
    else
        tile_dot_int8<C, A, B>();
}

template <int ROW_TILES, bool BF16, int COLUMN>
inline void add_column(const uint8_t* weights) {
    if constexpr (COLUMN < COLUMN_TILES<ROW_TILES>) {
        constexpr int B = WEIGHTS_TILE + COLUMN % 2;
        tile_load<B>(weights + COLUMN * TILE_BYTES, PANEL_ROW_BYTES);
        tile_dot<BF16, COLUMN, ROWS_TILE, B>();
        if constexpr (ROW_TILES == 2) tile_dot<BF16, COLUMN + COLUMN_TILES<2>, ROWS_TILE + 1, B>();
        add_column<ROW_TILES, BF16, COLUMN + 1>(weights);
    }
}

// Adds the dot products over `steps` tiles of inputs to the sums.
template <int ROW_TILES, bool BF16>
inline void accumulate_steps(const uint8_t* rows, int64_t row_bytes, const uint8_t* weights, int64_t steps,
                             int64_t depth_bytes) {
    for (int64_t k = 0; k < steps; ++k) {
        tile_load<ROWS_TILE>(rows + k * depth_bytes, row_bytes);
        if constexpr (ROW_TILES == 2)
            tile_load<ROWS_TILE + 1>(rows + TILE_ROWS * row_bytes + k * depth_bytes, row_bytes);
        add_column<ROW_TILES, BF16, 0>(weights);
        weights += depth_bytes / 4 * PANEL_ROW_BYTES;
        // With few rows the matrix is read from memory, and hardware prefetching ends at the end of a page.
        if constexpr (ROW_TILES == 1)
            for (int64_t i = 0; i < depth_bytes / 4 * PANEL_ROW_BYTES; i += 64)
                _mm_prefetch(reinterpret_cast<const char*>(weights) + PANEL_ROW_BYTES * TILE_ROWS + i, _MM_HINT_T0);
    }
}

// The sums of one pass: [rows][outputs], with as many outputs as tiles hold.
template <int ROW_TILES>
struct TileSums {
    static constexpr int OUTPUTS = COLUMN_TILES<ROW_TILES> * LANES;
    alignas(64) int32_t numbers[ROW_TILES * TILE_ROWS][OUTPUTS];

    void store() {
        constexpr int64_t stride = OUTPUTS * sizeof(int32_t);
        tile_store<0>(numbers[0], stride);
        tile_store<1>(numbers[0] + LANES, stride);
        if constexpr (ROW_TILES == 2) {
            tile_store<2>(numbers[TILE_ROWS], stride);
            tile_store<3>(numbers[TILE_ROWS] + LANES, stride);
        } else {
            tile_store<2>(numbers[0] + 2 * LANES, stride);
            tile_store<3>(numbers[0] + 3 * LANES, stride);
        }
    }
    static void clear() {
        tile_zero<0>();
        tile_zero<1>();
        tile_zero<2>();
        tile_zero<3>();
    }
};

// Unpacks a panel of int4 to a byte for each weight, less `middle`.
inline void unpack_nibbles(const WeightMatrix& weight, const uint8_t* panel, uint8_t middle, uint8_t* out) {
    int64_t head = (weight.format == Format::int4_zeros ? 3 : 2) * PANEL;
    for (int64_t g = 0; g < weight.padded_inputs / weight.group; ++g) {
        panel += head;
        for (int64_t k = 0; k < weight.group / 8; ++k, panel += PANEL_ROW_BYTES, out += 2 * PANEL_ROW_BYTES)
            for (int p = 0; p < VECTORS_PER_PANEL; ++p) {
                Bytes both = load_bytes(panel + p * 64);
                store_bytes(out + p * 64, subtract(low_nibbles(both), middle));
                store_bytes(out + PANEL_ROW_BYTES + p * 64, subtract(high_nibbles(both), middle));
            }
    }
}

// Unpacks a panel to signed bytes, [inputs / 4][64][4], whose sums remain to be scaled. With zero points, bytes are 0
// to 15 and zero points are subtracted from the sums.
void unpack_panel(const WeightMatrix& weight, const uint8_t* panel, uint8_t* out) {
    if (weight.format == Format::int8) {
        for (int64_t i = 0; i < weight.padded_inputs * PANEL; i += TILE_BYTES)
            store_bytes(out + i, subtract(load_bytes(panel + i), 128));
        return;
    }
    unpack_nibbles(weight, panel, weight.format == Format::int4_zeros ? 0 : 8, out);
}

// The head of a group of int4 in its panel, from one of the outputs on.
struct GroupHead {
    const uint16_t* scales;
    const uint8_t* zeros;
};
template <Format FORMAT>
inline GroupHead group_head(const WeightMatrix& weight, const uint8_t* panel, int64_t group, int64_t lane) {
    if (FORMAT == Format::int8) return {};
    int64_t head = (FORMAT == Format::int4_zeros ? 3 : 2) * PANEL;
    const uint8_t* start = panel + group * (head + weight.group / 2 * PANEL);
    return {reinterpret_cast<const uint16_t*>(start) + lane, start + 2 * PANEL + lane};
}

// Scales the integer sums of one group of inputs and adds them up in the order of gemm_int8 and gemm_int4.
template <int ROW_TILES, Format FORMAT>
void add_group(const PackedRows& in, const TileSums<ROW_TILES>& counts, float* sums, int64_t row, int64_t num_rows,
               int64_t group, GroupHead head) {
    constexpr int COLUMNS = COLUMN_TILES<ROW_TILES>;
    int64_t num_groups = in.width / in.group;
    Floats weight_scales[COLUMNS];
    Ints weight_zeros[COLUMNS];
    for (int c = 0; c < COLUMNS; ++c) {
        if (FORMAT != Format::int8) weight_scales[c] = load_f16(head.scales + c * LANES);
        if (FORMAT == Format::int4_zeros) weight_zeros[c] = load_u8(head.zeros + c * LANES);
    }
    for (int64_t r = 0; r < num_rows; ++r) {
        int64_t index = (row + r) * num_groups + group;
        Floats scale = broadcast(in.scales[index]);
        for (int c = 0; c < COLUMNS; ++c) {
            Ints count = load_ints(counts.numbers[r] + c * LANES);
            if (FORMAT == Format::int4_zeros) count = count + weight_zeros[c] * broadcast_ints(-in.sums[index]);
            Floats factor = FORMAT == Format::int8 ? scale : weight_scales[c] * scale;
            float* sum = sums + r * PANEL + c * LANES;
            store(sum, fma(to_floats(count), factor, load(sum)));
        }
    }
}

// Bytes of inputs in a row of a tile: groups of 32 fill half of it.
inline int64_t tile_depth(const LinearArgs& o) {
    return o.weight.format != Format::bfloat16 && o.input.group % TILE_BYTES ? TILE_BYTES / 2 : TILE_BYTES;
}

// State that the passes of one unit share.
struct TileWork {
    const LinearArgs& o;
    const uint8_t* panel;
    const uint8_t* bytes;  // The panel as tiles load it.
    float* sums;           // [rows of the block][64]
    int64_t first_row;     // Of the block.
};

// Multiplies up to 16 or 32 rows with a part of a panel, over some groups of inputs.
template <int ROW_TILES, Format FORMAT>
void int8_pass(const TileWork& work, int part, int64_t row, int64_t num_rows, int64_t first_group, int64_t last_group) {
    const PackedRows& in = work.o.input;
    int64_t depth = tile_depth(work.o);
    float* sums = work.sums + (row - work.first_row) * PANEL + part * LANES;
    TileSums<ROW_TILES> counts[2];
    auto add = [&](int64_t g) {
        GroupHead head = group_head<FORMAT>(work.o.weight, work.panel, g, part * LANES);
        add_group<ROW_TILES, FORMAT>(in, counts[g % 2], sums, row, num_rows, g, head);
    };
    // While tiles multiply one group, the sums of the group before are scaled and added up.
    for (int64_t g = first_group; g < last_group; ++g) {
        TileSums<ROW_TILES>::clear();
        accumulate_steps<ROW_TILES, false>(in.data + row * in.stride + g * in.group, in.stride,
                                           work.bytes + g * in.group / 4 * PANEL_ROW_BYTES + part * TILE_BYTES,
                                           in.group / depth, depth);
        if (g > first_group) add(g - 1);
        counts[g % 2].store();
    }
    add(last_group - 1);
}

template <int ROW_TILES>
void bf16_pass(const TileWork& work, int part, int64_t row, int64_t num_rows) {
    const PackedRows& in = work.o.input;
    TileSums<ROW_TILES> sums;
    TileSums<ROW_TILES>::clear();
    accumulate_steps<ROW_TILES, true>(in.data + row * in.stride, in.stride, work.bytes + part * TILE_BYTES,
                                      in.width * sizeof(uint16_t) / TILE_BYTES, TILE_BYTES);
    sums.store();
    for (int64_t r = 0; r < num_rows; ++r)
        std::memcpy(work.sums + (row - work.first_row + r) * PANEL + part * LANES, sums.numbers[r],
                    sizeof sums.numbers[r]);
}

template <int ROW_TILES>
void tile_passes(const TileWork& work, int64_t row, int64_t num_rows, int64_t first_group, int64_t last_group) {
    for (int part = 0; part < VECTORS_PER_PANEL; part += COLUMN_TILES<ROW_TILES>) {
        switch (work.o.weight.format) {
            case Format::bfloat16:
                bf16_pass<ROW_TILES>(work, part, row, num_rows);
                break;
            case Format::int8:
                int8_pass<ROW_TILES, Format::int8>(work, part, row, num_rows, first_group, last_group);
                break;
            case Format::int4:
                int8_pass<ROW_TILES, Format::int4>(work, part, row, num_rows, first_group, last_group);
                break;
            default:
                int8_pass<ROW_TILES, Format::int4_zeros>(work, part, row, num_rows, first_group, last_group);
        }
    }
}

// Multiplies all rows of a block with a panel, over some groups of inputs.
void multiply_rows(const TileWork& work, int64_t last_row, int64_t first_group, int64_t last_group) {
    int64_t depth = tile_depth(work.o), configured_rows = 0, num_rows;
    for (int64_t row = work.first_row; row < last_row; row += num_rows) {
        num_rows = std::min(2 * TILE_ROWS, last_row - row);
        if (num_rows > TILE_ROWS) {
            if (configured_rows != num_rows) configure_tiles_for<2>(num_rows, depth);
            tile_passes<2>(work, row, num_rows, first_group, last_group);
        } else {
            configure_tiles_for<1>(num_rows, depth);
            tile_passes<1>(work, row, num_rows, first_group, last_group);
        }
        configured_rows = num_rows;
    }
}

inline bool uses_tiles(const LinearArgs& o, int64_t num_rows) {
    if (o.weight.format == Format::float32) return false;
    if (o.weight.format == Format::bfloat16) return true;
    return num_rows >= MIN_TILE_ROWS && TILE_SUMS_BYTES + o.weight.padded_inputs * PANEL <= SCRATCH_BYTES;
}

// Multiplies rows [row, last), at most a block of them, with one panel.
void linear_with_tiles(const LinearArgs& o, int64_t panel_index, int64_t row, int64_t last, Scratch scratch) {
    const uint8_t* panel = o.weight.data + panel_index * o.weight.panel_bytes;
    bool is_bf16 = o.weight.format == Format::bfloat16;
    auto* sums = scratch.take<float>(ROWS_PER_BLOCK * PANEL);
    const uint8_t* bytes = panel;
    if (!is_bf16) {
        auto* unpacked = scratch.take<uint8_t>(o.weight.padded_inputs * PANEL);
        unpack_panel(o.weight, panel, unpacked);
        bytes = unpacked;
    }
    TileWork work = {o, panel, bytes, sums, row};
    std::memset(work.sums, 0, (last - row) * PANEL * sizeof(float));
    int64_t num_groups = is_bf16 ? 1 : o.input.width / o.input.group;
    int64_t groups_at_once = is_bf16 ? 1 : std::max<int64_t>(1, INPUTS_AT_ONCE / o.input.group);
    for (int64_t g = 0; g < num_groups; g += groups_at_once)
        multiply_rows(work, last, g, std::min(num_groups, g + groups_at_once));
    release_tiles();
    for (int64_t r = 0; r < last - row; ++r)
        for (int p = 0; p < VECTORS_PER_PANEL; ++p)
            store_output(o, row + r, panel_index * PANEL + p * LANES, load(work.sums + r * PANEL + p * LANES));
}

}  // namespace
}  // namespace archerfish::ISA
