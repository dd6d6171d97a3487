// Everything that works on one row after the other: norms, rotation, activation, packing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "lanes.h"
#include "program.h"

namespace archerfish::ISA {
namespace {

// Units of so many rows: few enough to share between threads, enough to be worth the asking.
constexpr int64_t ROWS_PER_UNIT = 4;

template <typename Operands>
inline int64_t num_rows_of(const Operands&, const Step& step) {
    return step.num_rows;
}
inline int64_t num_rows_of(const Activate& o, const Step& step) { return step.num_rows * o.times; }

template <typename Operands, void (*run_row)(const Operands&, const Step&, int64_t, uint8_t*)>
struct ByRow {
    static int64_t count(const void* operands, const Step& step) {
        return (num_rows_of(*(const Operands*)operands, step) + ROWS_PER_UNIT - 1) / ROWS_PER_UNIT;
    }
    static void run(const void* operands, const Step& step, int64_t unit, uint8_t* scratch) {
        const Operands& o = *(const Operands*)operands;
        int64_t last = std::min(num_rows_of(o, step), (unit + 1) * ROWS_PER_UNIT);
        for (int64_t row = unit * ROWS_PER_UNIT; row < last; ++row) run_row(o, step, row, scratch);
    }
    static constexpr Kernel kernel = {count, run};
};

inline float* part_of(const Rows& rows, int64_t row, int64_t part) {
    return rows.data + row * rows.stride + part * rows.part_stride;
}

// Calls f(place, lanes) for every sixteen numbers of a row of this width; lanes is 16, at the end perhaps fewer.
template <typename Function>
inline void over_lanes(int64_t width, Function f) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) f(i, LANES);
    if (i < width) f(i, (int)(width - i));
}
inline Floats load_lanes(const float* p, int lanes) { return lanes == LANES ? load(p) : load_some(p, lanes); }
inline void store_lanes(float* p, Floats x, int lanes) { lanes == LANES ? store(p, x) : store_some(p, x, lanes); }

// -- packing ----------------------------------------------------------------------------------------------------------

// One group to int8: x ~ q * scale. A number that is not finite makes the scale NaN, and so whatever is computed of it.
inline void pack_group(const float* x, int64_t count, int64_t group, int8_t* q, float* scale, int32_t* total) {
    Floats most = zeros(), broken = zeros();
    over_lanes(count, [&](int64_t i, int lanes) {
        Floats v = load_lanes(x + i, lanes);
        most = max(most, absolute(v));
        broken = fma(v, zeros(), broken);
    });
    float spoilt = sum(broken);
    if (spoilt != 0.0f) {
        std::memset(q, 0, group);
        *scale = spoilt;
        *total = 0;
        return;
    }
    float peak = largest(most);
    float inverse = peak > 0.0f ? 127.0f / peak : 0.0f;
    if (!(inverse <= 3.4e38f)) inverse = 0.0f;  // The smallest of numbers count as zero.
    *scale = inverse == 0.0f ? 0.0f : peak / 127.0f;
    Ints sums = all_ints(0);
    over_lanes(group, [&](int64_t i, int lanes) {
        int have = (int)std::max<int64_t>(0, std::min<int64_t>(lanes, count - i));
        Ints v = to_ints(rounded((have == LANES ? load(x + i) : load_some(x + i, have)) * all(inverse)));
        sums = sums + v;
        store_int8(q + i, v);
    });
    *total = sum(sums);
}

inline void pack_row(const float* x, int64_t width, const Packed& packed, int64_t row) {
    switch (packed.format) {
        case Format::float32: {
            float* out = (float*)(packed.data + row * packed.stride);
            std::memcpy(out, x, width * sizeof(float));
            std::memset(out + width, 0, (packed.width - width) * sizeof(float));
            break;
        }
        case Format::bfloat16: {
            uint16_t* out = (uint16_t*)(packed.data + row * packed.stride);
            over_lanes(width, [&](int64_t i, int lanes) {
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
                int64_t first = g * packed.group, place = row * num_groups + g;
                int64_t count = std::max<int64_t>(0, std::min<int64_t>(packed.group, width - first));
                pack_group(x + first, count, packed.group, (int8_t*)packed.data + row * packed.stride + first,
                           packed.scales + place, packed.sums + place);
            }
        }
    }
}

void pack(const Pack& o, const Step&, int64_t row, uint8_t*) {
    pack_row(o.input.data + row * o.input.stride, o.input.width, o.packed, row);
}

void select(const Select& o, const Step& step, int64_t row, uint8_t*) {
    std::memcpy(part_of(o.out, row, 0), part_of(o.input, step.picked[row], 0), o.out.width * sizeof(float));
}

void spread(const Spread& o, const Step&, int64_t row, uint8_t*) {
    const float* in = part_of(o.input, row, 0);
    float* out = part_of(o.out, row, 0);
    std::fill(out, out + o.out.width, -INFINITY);
    for (int64_t i = 0; i < o.input.width; ++i) out[o.ids[i]] = in[i];
}

// -- elementwise ------------------------------------------------------------------------------------------------------

void add(const Add& o, const Step&, int64_t row, uint8_t*) {
    const float *left = part_of(o.left, row, 0), *right = part_of(o.right, row, 0);
    float* out = part_of(o.out, row, 0);
    over_lanes(o.out.width, [&](int64_t i, int lanes) {
        store_lanes(out + i, fma(load_lanes(right + i, lanes), all(o.factor), load_lanes(left + i, lanes)), lanes);
    });
}

void scale(const Scale& o, const Step&, int64_t row, uint8_t*) {
    const float* in = part_of(o.input, row, 0);
    float* out = part_of(o.out, row, 0);
    over_lanes(o.out.width,
               [&](int64_t i, int lanes) { store_lanes(out + i, load_lanes(in + i, lanes) * all(o.factor), lanes); });
}

void softcap(const Softcap& o, const Step&, int64_t row, uint8_t*) {
    const float* in = part_of(o.input, row, 0);
    float* out = part_of(o.out, row, 0);
    over_lanes(o.out.width, [&](int64_t i, int lanes) {
        Floats x = load_lanes(in + i, lanes) / all(o.cap);
        store_lanes(out + i, hyperbolic_tangent(x) * all(o.cap), lanes);
    });
}

// -- norms ------------------------------------------------------------------------------------------------------------

inline float sum_of_squares(const float* x, int64_t width, float less) {
    Floats total = zeros();
    over_lanes(width, [&](int64_t i, int lanes) {
        Floats v = load_lanes(x + i, lanes) - all(less);
        // Past the end there are zeros, which a mean would turn into something else.
        if (lanes < LANES) {
            float rest[LANES] = {};
            store_some(rest, v, lanes);
            v = load(rest);
        }
        total = fma(v, v, total);
    });
    return sum(total);
}

// Where a row is made: in scratch, where nobody wants it but whoever packs it.
inline float* made_at(const Rows& out, int64_t row, int64_t part, uint8_t* scratch) {
    return out.data ? part_of(out, row, part) : (float*)scratch;
}

inline const float* summed(const Norm& o, int64_t row, const float* in) {
    if (!o.has_added) return in;
    const float* added = part_of(o.added, row, 0);
    float* out = part_of(o.sum, row, 0);
    over_lanes(o.input.width, [&](int64_t i, int lanes) {
        store_lanes(out + i, fma(load_lanes(added + i, lanes), all(o.factor), load_lanes(in + i, lanes)), lanes);
    });
    return out;
}

void rms_norm(const Norm& o, const Step&, int64_t row, uint8_t* scratch) {
    for (int64_t part = 0; part < o.input.num_parts; ++part) {
        const float* in = summed(o, row, part_of(o.input, row, part));
        float* out = made_at(o.out, row, part, scratch);
        Floats shrink = all(1.0f / std::sqrt(sum_of_squares(in, o.input.width, 0.0f) / (float)o.input.width + o.eps));
        over_lanes(o.input.width, [&](int64_t i, int lanes) {
            Floats gain = load_lanes(o.weight + i, lanes) + all(o.weight_offset);
            store_lanes(out + i, load_lanes(in + i, lanes) * shrink * gain, lanes);
        });
    }
    if (o.packs) pack_row(made_at(o.out, row, 0, scratch), o.out.width, o.packed, row);
}

void layer_norm(const Norm& o, const Step&, int64_t row, uint8_t* scratch) {
    const float* in = summed(o, row, part_of(o.input, row, 0));
    float* out = made_at(o.out, row, 0, scratch);
    Floats total = zeros();
    over_lanes(o.input.width, [&](int64_t i, int lanes) { total = total + load_lanes(in + i, lanes); });
    float mean = sum(total) / (float)o.input.width;
    Floats shrink = all(1.0f / std::sqrt(sum_of_squares(in, o.input.width, mean) / (float)o.input.width + o.eps));
    over_lanes(o.input.width, [&](int64_t i, int lanes) {
        Floats normed = (load_lanes(in + i, lanes) - all(mean)) * shrink;
        store_lanes(out + i, fma(normed, load_lanes(o.weight + i, lanes), load_lanes(o.bias + i, lanes)), lanes);
    });
    if (o.packs) pack_row(out, o.out.width, o.packed, row);
}

// -- rotation ---------------------------------------------------------------------------------------------------------

// One head: the first dimensions turn, pairing i with i + half; the rest stay.
inline void rotate_part(const float* in, float* out, int64_t width, const Rows& angles, int64_t row) {
    int64_t half = angles.width / 2;
    const float* cosines = part_of(angles, row, 0);
    const float* sines = cosines + half;
    over_lanes(half, [&](int64_t i, int lanes) {
        Floats first = load_lanes(in + i, lanes), second = load_lanes(in + half + i, lanes);
        Floats c = load_lanes(cosines + i, lanes), s = load_lanes(sines + i, lanes);
        store_lanes(out + i, first * c - second * s, lanes);
        store_lanes(out + half + i, second * c + first * s, lanes);
    });
    for (int64_t i = 2 * half; i < width; ++i) out[i] = in[i];
}

void rotate(const Rotate& o, const Step&, int64_t row, uint8_t*) {
    for (int64_t part = 0; part < o.input.num_parts; ++part)
        rotate_part(part_of(o.input, row, part), part_of(o.out, row, part), o.input.width, o.angles, row);
}

// -- activation -------------------------------------------------------------------------------------------------------

// The share of a normal distribution below x. Through the tail's own approximation, so that small shares stay exact.
inline Floats normal_share(Floats x) {
    Floats a = absolute(x) * all(0.70710678f);
    Floats t = all(1.0f) / fma(all(0.5f), a, all(1.0f));
    Floats p = all(0.17087277f);
    p = fma(p, t, all(-0.82215223f));
    p = fma(p, t, all(1.48851587f));
    p = fma(p, t, all(-1.13520398f));
    p = fma(p, t, all(0.27886807f));
    p = fma(p, t, all(-0.18628806f));
    p = fma(p, t, all(0.09678418f));
    p = fma(p, t, all(0.37409196f));
    p = fma(p, t, all(1.00002368f));
    p = fma(p, t, all(-1.26551223f));
    Floats tail = all(0.5f) * t * exponential(p - a * a);
    return where_less(x, zeros(), tail, all(1.0f) - tail);
}

inline Floats sigmoid(Floats x) { return all(1.0f) / (all(1.0f) + exponential(zeros() - x)); }

template <Activation kind>
inline Floats activated(Floats x) {
    switch (kind) {
        case Activation::silu:
            return x * sigmoid(x);
        case Activation::gelu:
            return x * normal_share(x);
        case Activation::gelu_tanh:  // (1 + tanh(y)) / 2 is the sigmoid of 2 y.
            return x * sigmoid(all(1.59576912f) * fma(all(0.044715f) * x * x, x, x));
        case Activation::relu:
            return max(zeros(), x);
    }
}

template <Activation kind>
void activate_row(const Activate& o, int64_t row, uint8_t* scratch) {
    const float* in = part_of(o.input, row, 0);
    float* out = made_at(o.out, row, 0, scratch);
    int64_t width = o.out.width;
    over_lanes(width, [&](int64_t i, int lanes) {
        Floats y = activated<kind>(load_lanes(in + i, lanes));
        store_lanes(out + i, o.gated ? y * load_lanes(in + width + i, lanes) : y, lanes);
    });
    if (o.packs) pack_row(out, width, o.packed, row);
}

void activate(const Activate& o, const Step&, int64_t row, uint8_t* scratch) {
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
