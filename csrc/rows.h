// Operations that compute one row after the other: packing, elementwise arithmetic, norms, rotation, activation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "lanes.h"
#include "program.h"

namespace archerfish::ISA {
namespace {

// Rows of one unit of work: few, so that threads share them evenly, but enough to outweigh taking a unit.
constexpr int64_t ROWS_PER_UNIT = 4;

template <typename Arguments>
inline int64_t num_rows_of(const Arguments&, const StepView& step) {
    return step.num_rows;
}
inline int64_t num_rows_of(const ActivateArgs& o, const StepView& step) { return step.num_rows * o.rows_per_token; }

template <typename Arguments, void (*run_row)(const Arguments&, const StepView&, int64_t, Scratch)>
struct ByRow {
    static int64_t count(const void* arguments, const StepView& step) {
        return (num_rows_of(*static_cast<const Arguments*>(arguments), step) + ROWS_PER_UNIT - 1) / ROWS_PER_UNIT;
    }
    static void run(const void* arguments, const StepView& step, int64_t unit, Scratch scratch) {
        const Arguments& o = *static_cast<const Arguments*>(arguments);
        int64_t last = std::min(num_rows_of(o, step), (unit + 1) * ROWS_PER_UNIT);
        for (int64_t row = unit * ROWS_PER_UNIT; row < last; ++row) run_row(o, step, row, scratch);
    }
    static constexpr Kernel kernel = {count, run};
};

inline float* row_part(const StridedRows& rows, int64_t row, int64_t part) {
    return rows.data + row * rows.stride + part * rows.part_stride;
}

// Calls f(i, lanes) for every vector of a row of this width, where i is its first number. `lanes` is 16, or less for
// the last one.
template <typename Function>
inline void for_each_vector(int64_t width, Function f) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) f(i, LANES);
    if (i < width) f(i, static_cast<int>(width - i));
}
inline Floats load_lanes(const float* p, int lanes) { return lanes == LANES ? load(p) : load_partial(p, lanes); }
inline void store_lanes(float* p, Floats x, int lanes) { lanes == LANES ? store(p, x) : store_partial(p, x, lanes); }

// -- packing ----------------------------------------------------------------------------------------------------------

// Quantizes a group to int8: x ~ q * scale. A number that is not finite makes the scale NaN, and with it all results.
inline void pack_group(const float* x, int64_t count, int64_t group, int8_t* q, float* scale, int32_t* total) {
    Floats peaks = zeros(), non_finite = zeros();  // The latter NaN where a number is not finite.
    for_each_vector(count, [&](int64_t i, int lanes) {
        Floats v = load_lanes(x + i, lanes);
        peaks = max(peaks, absolute(v));
        non_finite = fma(v, zeros(), non_finite);
    });
    float nan = reduce_sum(non_finite);
    if (nan != 0.0f) {
        std::memset(q, 0, group);
        *scale = nan;
        *total = 0;
        return;
    }
    float peak = reduce_max(peaks);
    float inverse = peak > 0.0f ? 127.0f / peak : 0.0f;
    if (!(inverse <= 3.4e38f)) inverse = 0.0f;  // The smallest numbers are rounded to zero.
    *scale = inverse == 0.0f ? 0.0f : peak / 127.0f;
    Ints sums = broadcast_ints(0);
    for_each_vector(group, [&](int64_t i, int lanes) {
        int valid = static_cast<int>(std::max<int64_t>(0, std::min<int64_t>(lanes, count - i)));
        Ints v = to_ints(round_even((valid == LANES ? load(x + i) : load_partial(x + i, valid)) * broadcast(inverse)));
        sums = sums + v;
        store_int8(q + i, v);
    });
    *total = reduce_sum(sums);
}

inline void pack_row(const float* x, int64_t width, const PackedRows& packed, int64_t row) {
    switch (packed.format) {
        case Format::float32: {
            float* out = reinterpret_cast<float*>(packed.data + row * packed.stride);
            std::memcpy(out, x, width * sizeof(float));
            std::memset(out + width, 0, (packed.width - width) * sizeof(float));
            break;
        }
        case Format::bfloat16: {
            uint16_t* out = reinterpret_cast<uint16_t*>(packed.data + row * packed.stride);
            for_each_vector(width, [&](int64_t i, int lanes) {
                uint16_t some[LANES];
                store_bf16(some, load_lanes(x + i, lanes));
                std::memcpy(out + i, some, lanes * sizeof(uint16_t));
            });
            std::memset(out + width, 0, (packed.width - width) * sizeof(uint16_t));
            break;
        }
        default: {
            int64_t num_groups = packed.width / packed.group;
            for (int64_t g = 0; g < num_groups; ++g) {
                int64_t first = g * packed.group, index = row * num_groups + g;
                int64_t count = std::max<int64_t>(0, std::min<int64_t>(packed.group, width - first));
                pack_group(x + first, count, packed.group,
                           reinterpret_cast<int8_t*>(packed.data) + row * packed.stride + first, packed.scales + index,
                           packed.sums + index);
            }
        }
    }
}

void pack(const PackArgs& o, const StepView&, int64_t row, Scratch) {
    pack_row(o.input.data + row * o.input.stride, o.input.width, o.packed, row);
}

void select(const SelectArgs& o, const StepView& step, int64_t row, Scratch) {
    std::memcpy(row_part(o.out, row, 0), row_part(o.input, step.logit_indices[row], 0), o.out.width * sizeof(float));
}

void scatter(const ScatterArgs& o, const StepView&, int64_t row, Scratch) {
    const float* in = row_part(o.input, row, 0);
    float* out = row_part(o.out, row, 0);
    std::fill(out, out + o.out.width, -INFINITY);
    for (int64_t i = 0; i < o.input.width; ++i) out[o.ids[i]] = in[i];
}

// -- elementwise ------------------------------------------------------------------------------------------------------

void add(const AddArgs& o, const StepView&, int64_t row, Scratch) {
    const float *left = row_part(o.left, row, 0), *right = row_part(o.right, row, 0);
    float* out = row_part(o.out, row, 0);
    for_each_vector(o.out.width, [&](int64_t i, int lanes) {
        store_lanes(out + i, fma(load_lanes(right + i, lanes), broadcast(o.factor), load_lanes(left + i, lanes)),
                    lanes);
    });
}

void scale(const ScaleArgs& o, const StepView&, int64_t row, Scratch) {
    const float* in = row_part(o.input, row, 0);
    float* out = row_part(o.out, row, 0);
    for_each_vector(o.out.width, [&](int64_t i, int lanes) {
        store_lanes(out + i, load_lanes(in + i, lanes) * broadcast(o.factor), lanes);
    });
}

void softcap(const SoftcapArgs& o, const StepView&, int64_t row, Scratch) {
    const float* in = row_part(o.input, row, 0);
    float* out = row_part(o.out, row, 0);
    for_each_vector(o.out.width, [&](int64_t i, int lanes) {
        Floats x = load_lanes(in + i, lanes) / broadcast(o.cap);
        store_lanes(out + i, hyperbolic_tangent(x) * broadcast(o.cap), lanes);
    });
}

// -- norms ------------------------------------------------------------------------------------------------------------

inline float sum_of_squares(const float* x, int64_t width, float mean) {
    Floats total = zeros();
    for_each_vector(width, [&](int64_t i, int lanes) {
        Floats v = load_lanes(x + i, lanes) - broadcast(mean);
        // Lanes past the end are zero, and must stay so when the mean is subtracted.
        if (lanes < LANES) {
            float rest[LANES] = {};
            store_partial(rest, v, lanes);
            v = load(rest);
        }
        total = fma(v, v, total);
    });
    return reduce_sum(total);
}

static_assert(MAX_ROW_WIDTH * static_cast<int64_t>(sizeof(float)) <= SCRATCH_BYTES,
              "a row does not fit in scratch memory");

// Memory to compute a row in: scratch memory where it is only read packed.
inline float* output_part(const StridedRows& out, int64_t row, int64_t part, Scratch& scratch) {
    return out.data ? row_part(out, row, part) : scratch.take<float>(out.width);
}

inline const float* add_residual(const NormArgs& o, int64_t row, const float* in) {
    if (!o.has_residual) return in;
    const float* residual = row_part(o.residual, row, 0);
    float* out = row_part(o.sum, row, 0);
    for_each_vector(o.input.width, [&](int64_t i, int lanes) {
        store_lanes(out + i, fma(load_lanes(residual + i, lanes), broadcast(o.factor), load_lanes(in + i, lanes)),
                    lanes);
    });
    return out;
}

void rms_norm(const NormArgs& o, const StepView&, int64_t row, Scratch scratch) {
    float* out = nullptr;
    for (int64_t part = 0; part < o.input.num_parts; ++part) {
        const float* in = add_residual(o, row, row_part(o.input, row, part));
        out = output_part(o.out, row, part, scratch);
        Floats inverse_rms = broadcast(
            1.0f / std::sqrt(sum_of_squares(in, o.input.width, 0.0f) / static_cast<float>(o.input.width) + o.eps));
        for_each_vector(o.input.width, [&](int64_t i, int lanes) {
            Floats gain = load_lanes(o.weight + i, lanes) + broadcast(o.weight_offset);
            store_lanes(out + i, load_lanes(in + i, lanes) * inverse_rms * gain, lanes);
        });
    }
    if (o.has_packed) pack_row(out, o.out.width, o.packed, row);  // A row that is packed has one part.
}

void layer_norm(const NormArgs& o, const StepView&, int64_t row, Scratch scratch) {
    const float* in = add_residual(o, row, row_part(o.input, row, 0));
    float* out = output_part(o.out, row, 0, scratch);
    Floats total = zeros();
    for_each_vector(o.input.width, [&](int64_t i, int lanes) { total = total + load_lanes(in + i, lanes); });
    float mean = reduce_sum(total) / static_cast<float>(o.input.width);
    Floats inverse_deviation = broadcast(
        1.0f / std::sqrt(sum_of_squares(in, o.input.width, mean) / static_cast<float>(o.input.width) + o.eps));
    for_each_vector(o.input.width, [&](int64_t i, int lanes) {
        Floats normed = (load_lanes(in + i, lanes) - broadcast(mean)) * inverse_deviation;
        store_lanes(out + i, fma(normed, load_lanes(o.weight + i, lanes), load_lanes(o.bias + i, lanes)), lanes);
    });
    if (o.has_packed) pack_row(out, o.out.width, o.packed, row);
}

// -- rotation ---------------------------------------------------------------------------------------------------------

// Rotates the first dimensions of a head, pairing i with i + half, and copies the rest.
inline void rotate_part(const float* in, float* out, int64_t width, const StridedRows& angles, int64_t row) {
    int64_t half = angles.width / 2;
    const float* cosines = row_part(angles, row, 0);
    const float* sines = cosines + half;
    for_each_vector(half, [&](int64_t i, int lanes) {
        Floats first = load_lanes(in + i, lanes), second = load_lanes(in + half + i, lanes);
        Floats c = load_lanes(cosines + i, lanes), s = load_lanes(sines + i, lanes);
        store_lanes(out + i, first * c - second * s, lanes);
        store_lanes(out + half + i, second * c + first * s, lanes);
    });
    for (int64_t i = 2 * half; i < width; ++i) out[i] = in[i];
}

void rotate(const RotateArgs& o, const StepView&, int64_t row, Scratch) {
    for (int64_t part = 0; part < o.input.num_parts; ++part)
        rotate_part(row_part(o.input, row, part), row_part(o.out, row, part), o.input.width, o.angles, row);
}

// -- activation -------------------------------------------------------------------------------------------------------

// The cumulative distribution function of the normal distribution. The tail is approximated by itself, so that small
// values stay exact.
inline Floats normal_cdf(Floats x) {
    Floats a = absolute(x) * broadcast(0.70710678f);
    Floats t = broadcast(1.0f) / fma(broadcast(0.5f), a, broadcast(1.0f));
    Floats p = broadcast(0.17087277f);
    p = fma(p, t, broadcast(-0.82215223f));
    p = fma(p, t, broadcast(1.48851587f));
    p = fma(p, t, broadcast(-1.13520398f));
    p = fma(p, t, broadcast(0.27886807f));
    p = fma(p, t, broadcast(-0.18628806f));
    p = fma(p, t, broadcast(0.09678418f));
    p = fma(p, t, broadcast(0.37409196f));
    p = fma(p, t, broadcast(1.00002368f));
    p = fma(p, t, broadcast(-1.26551223f));
    Floats tail = broadcast(0.5f) * t * exponential(p - a * a);
    return select_less(x, zeros(), tail, broadcast(1.0f) - tail);
}

inline Floats sigmoid(Floats x) { return broadcast(1.0f) / (broadcast(1.0f) + exponential(zeros() - x)); }

template <Activation kind>
inline Floats apply_activation(Floats x) {
    switch (kind) {
        case Activation::silu:
            return x * sigmoid(x);
        case Activation::gelu:
            return x * normal_cdf(x);
        case Activation::gelu_tanh:  // (1 + tanh(y)) / 2 is the sigmoid of 2 y.
            return x * sigmoid(broadcast(1.59576912f) * fma(broadcast(0.044715f) * x * x, x, x));
        case Activation::relu:
            return max(zeros(), x);
    }
}

template <Activation kind>
void activate_row(const ActivateArgs& o, int64_t row, Scratch scratch) {
    const float* in = row_part(o.input, row, 0);
    float* out = output_part(o.out, row, 0, scratch);
    int64_t width = o.out.width;
    for_each_vector(width, [&](int64_t i, int lanes) {
        Floats y = apply_activation<kind>(load_lanes(in + i, lanes));
        store_lanes(out + i, o.gated ? y * load_lanes(in + width + i, lanes) : y, lanes);
    });
    if (o.has_packed) pack_row(out, width, o.packed, row);
}

void activate(const ActivateArgs& o, const StepView&, int64_t row, Scratch scratch) {
    switch (o.activation) {
        case Activation::silu:
            return activate_row<Activation::silu>(o, row, scratch);
        case Activation::gelu:
            return activate_row<Activation::gelu>(o, row, scratch);
        case Activation::gelu_tanh:
            return activate_row<Activation::gelu_tanh>(o, row, scratch);
        case Activation::relu:
            return activate_row<Activation::relu>(o, row, scratch);
    }
}

}  // namespace
}  // namespace archerfish::ISA
