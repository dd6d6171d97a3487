// Keys and values on their way into the cache, and as they are read from it.
//
// What is stored of a token depends on its own keys and values alone: never on its neighbours in the step or the block.
#pragma once

#include <cstdint>
#include <cstring>

#include "lanes.h"
#include "program.h"
#include "rows.h"

namespace archerfish::ISA {
namespace {

// Calls f with a value of the type of the cache's numbers.
template <typename Function>
inline void dispatch_cache_format(CacheFormat format, Function f) {
    switch (format) {
        case CacheFormat::float32:
            return f(float());
        case CacheFormat::bfloat16:
            return f(uint16_t());
        case CacheFormat::int8:
            return f(int8_t());
    }
}

inline Floats load_cached(const float* p) { return load(p); }
inline Floats load_cached(const uint16_t* p) { return load_bf16(p); }
inline Floats load_cached(const int8_t* p) { return load_int8(p); }

// Stores one head of a token in the format of the cache. Only int8 has a scale.
inline void store_head(const float* x, int64_t head_dim, float* out, float*) {
    std::memcpy(out, x, head_dim * sizeof(float));
}
inline void store_head(const float* x, int64_t head_dim, uint16_t* out, float*) {
    for (int64_t d = 0; d < head_dim; d += LANES) store_bf16(out + d, load(x + d));
}
inline void store_head(const float* x, int64_t head_dim, int8_t* out, float* scale) {
    int32_t total;  // Needed by integer GEMMs only.
    pack_group(x, head_dim, head_dim, out, scale, &total);
}

// The scale of a token's head, followed by those of the next tokens in the block; null where there are none.
inline float* scale_of(const PagedCache& cache, float* scales, int64_t block, int64_t head, int64_t offset) {
    return scales ? scales + (block * cache.num_heads + head) * cache.block_size + offset : nullptr;
}

template <typename T>
void write_row(const WriteKvArgs& o, const StepView& step, int64_t row) {
    const PagedCache& cache = o.cache;
    int64_t head_dim = cache.head_dim, block_size = cache.block_size;
    int64_t block = step.slots[cache.kv_group][row] / block_size, offset = step.slots[cache.kv_group][row] % block_size;
    int64_t first = block * block_size * cache.num_heads * head_dim;
    float rotated[MAX_HEAD_DIM];
    T stored[MAX_HEAD_DIM];
    for (int64_t head = 0; head < cache.num_heads; ++head) {
        const float* k = row_part(o.keys, row, head);
        if (o.angles.data) {
            rotate_part(k, rotated, head_dim, o.angles, row);
            k = rotated;
        }
        store_head(k, head_dim, stored, scale_of(cache, cache.key_scales, block, head, offset));
        T* column = reinterpret_cast<T*>(cache.keys) + first + (head * block_size + offset / LANES * LANES) * head_dim +
                    offset % LANES;
        for (int64_t d = 0; d < head_dim; ++d) column[d * LANES] = stored[d];
        T* values = reinterpret_cast<T*>(cache.values) + first + (offset * cache.num_heads + head) * head_dim;
        float* scale = scale_of(cache, cache.value_scales, block, head, offset);
        store_head(row_part(o.values, row, head), head_dim, values, scale);
    }
}

void write_kv(const WriteKvArgs& o, const StepView& step, int64_t row, Scratch) {
    dispatch_cache_format(o.cache.format, [&](auto value) { write_row<decltype(value)>(o, step, row); });
}

}  // namespace
}  // namespace archerfish::ISA
