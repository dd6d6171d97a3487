// Looks up rows in a packed matrix, or in a table that is not packed.
#pragma once

#include <cstdint>
#include <cstring>

#include "lanes.h"
#include "program.h"

namespace archerfish::ISA {
namespace {

inline float half_to_float(uint16_t bits) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits))); }

// Copies a row of a table that is not packed, whose panel_bytes are 0.
inline void copy_row(const WeightMatrix& weight, int64_t output, float* out) {
    if (weight.format == Format::float32) {
        std::memcpy(out, reinterpret_cast<const float*>(weight.data) + output * weight.num_inputs,
                    weight.num_inputs * sizeof(float));
    } else {
        const uint16_t* row = reinterpret_cast<const uint16_t*>(weight.data) + output * weight.num_inputs;
        for (int64_t k = 0; k < weight.num_inputs; ++k) out[k] = float_of(static_cast<uint32_t>(row[k]) << 16);
    }
}

void unpack_row(const WeightMatrix& weight, int64_t output, float* out) {
    if (weight.panel_bytes == 0) return copy_row(weight, output, out);
    const uint8_t* panel = weight.data + output / PANEL * weight.panel_bytes;
    int64_t lane = output % PANEL;
    switch (weight.format) {
        case Format::float32:
            for (int64_t k = 0; k < weight.num_inputs; ++k)
                out[k] = reinterpret_cast<const float*>(panel)[k * PANEL + lane];
            break;
        case Format::bfloat16:
            for (int64_t k = 0; k < weight.num_inputs; ++k) {
                uint16_t value = reinterpret_cast<const uint16_t*>(panel)[(k / 2 * PANEL + lane) * 2 + k % 2];
                out[k] = float_of(static_cast<uint32_t>(value) << 16);
            }
            break;
        case Format::int8:
            for (int64_t k = 0; k < weight.num_inputs; ++k)
                out[k] = (static_cast<int>(panel[(k / 4 * PANEL + lane) * 4 + k % 4]) - 128) * weight.scales[output];
            break;
        default: {
            bool zeros = weight.format == Format::int4_zeros;
            int64_t head = (zeros ? 3 : 2) * PANEL, group_bytes = head + weight.group / 2 * PANEL;
            for (int64_t k = 0; k < weight.num_inputs; ++k) {
                const uint8_t* group = panel + k / weight.group * group_bytes;
                int64_t j = k % weight.group;
                uint8_t both = group[head + (j / 8 * PANEL + lane) * 4 + j % 4];
                int value = j % 8 < 4 ? both & 15 : both >> 4;
                int zero = zeros ? group[2 * PANEL + lane] : 8;
                out[k] = (value - zero) * half_to_float(reinterpret_cast<const uint16_t*>(group)[lane]);
            }
        }
    }
}

void embed(const EmbedArgs& o, const StepView& step, int64_t row, Scratch) {
    const int64_t* index = o.index == IndexSource::tokens ? step.tokens : step.positions;
    unpack_row(o.table, index[row], o.out.data + row * o.out.stride);
}

}  // namespace
}  // namespace archerfish::ISA
