// Vectors of sixteen numbers with the same arithmetic on every instruction set: lanes are reduced in one order, and
// multiply-adds are fused everywhere, so a kernel written with them gives the same bits with AVX2 as with AVX-512.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define ARCHERFISH_AVX512 1
#endif

// Kernels are compiled once for each instruction set, in a namespace of its name: ISA is defined as that name.
namespace archerfish::ISA {

constexpr int LANES = 16;

inline float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

#ifdef ARCHERFISH_AVX512

struct Floats {
    __m512 v;
};
struct Ints {
    __m512i v;
};
struct Bytes {
    __m512i v;
};

inline Floats zeros() { return {_mm512_setzero_ps()}; }
inline Floats broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x.v); }
inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// As the CPU's instruction: where either is NaN, the result is the second.
inline Floats max(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats min(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Floats absolute(Floats a) { return {_mm512_abs_ps(a.v)}; }
inline Floats round_even(Floats a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Floats select_less(Floats a, Floats b, Floats yes, Floats no) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
inline Ints to_ints(Floats a) { return {_mm512_cvtps_epi32(a.v)}; }
inline Floats to_floats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline Floats scale_by_power_of_two(Floats a, Ints n) {
    // For normal numbers and moderate n, n can be added to the bits of the exponent.
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a.v), _mm512_slli_epi32(n.v, 23)))};
}
inline Floats load_bf16(const uint16_t* p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline Floats load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Floats load_int8(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline void store_bf16(uint16_t* p, Floats x) {
    // Rounds to the nearest, ties to even. NaN stays NaN.
    __m512i bits = _mm512_castps_si512(x.v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded_bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
    rounded_bits = _mm512_mask_or_epi32(rounded_bits, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_bits, 16)));
}
inline void store_int8(int8_t* p, Ints x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(x.v));
}

inline Ints broadcast_ints(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline Ints load_ints(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline Ints load_u8(const uint8_t* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Ints operator*(Ints a, Ints b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
inline Ints operator^(Ints a, Ints b) { return {_mm512_xor_si512(a.v, b.v)}; }
inline Ints operator&(Ints a, Ints b) { return {_mm512_and_si512(a.v, b.v)}; }
template <int BITS>
inline Ints shift_right(Ints a) {
    return {_mm512_srli_epi32(a.v, BITS)};
}
inline Ints bits_of(Floats a) { return {_mm512_castps_si512(a.v)}; }
inline Floats floats_of(Ints bits) { return {_mm512_castsi512_ps(bits.v)}; }
inline Ints iota(int32_t first) {
    return {_mm512_add_epi32(_mm512_set1_epi32(first),
                             _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0))};
}
inline void store_ints(int32_t* p, Ints x) { _mm512_storeu_si512(p, x.v); }
// Masks have one bit for each lane.
inline uint32_t mask_greater(Floats a, Floats b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
inline uint32_t mask_greater_equal(Floats a, Floats b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
inline uint32_t mask_nan(Floats a) { return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q); }

inline Bytes load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store_bytes(uint8_t* p, Bytes x) { _mm512_storeu_si512(p, x.v); }
inline Bytes low_nibbles(Bytes x) { return {_mm512_and_si512(x.v, _mm512_set1_epi8(0x0F))}; }
inline Bytes high_nibbles(Bytes x) { return {_mm512_and_si512(_mm512_srli_epi16(x.v, 4), _mm512_set1_epi8(0x0F))}; }
inline Bytes subtract(Bytes x, uint8_t y) { return {_mm512_sub_epi8(x.v, _mm512_set1_epi8(static_cast<char>(y)))}; }
// Adds dot products of four to sixteen sums: of unsigned bytes of x with the four signed bytes of `four`.
inline Ints dot_int8(Ints sum, Bytes x, int32_t four) {
#ifdef __AVX512VNNI__
    // In assembly, because gcc 12 copies the sum to another register and back around the intrinsic.
    asm("vpdpbusd %[four], %[bytes], %[sum]"
        : [sum] "+v"(sum.v)
        : [bytes] "v"(x.v), [four] "v"(_mm512_set1_epi32(four)));
    return sum;
#else
    __m512i y = _mm512_set1_epi32(four), low_mask = _mm512_set1_epi16(0x00FF);
    __m512i even = _mm512_madd_epi16(_mm512_and_si512(x.v, low_mask), _mm512_srai_epi16(_mm512_slli_epi16(y, 8), 8));
    __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(x.v, 8), _mm512_srai_epi16(y, 8));
    return {_mm512_add_epi32(sum.v, _mm512_add_epi32(even, odd))};
#endif
}
// Adds dot products of two to sixteen sums: of pairs of bfloat16 of x with the two of `pair`.
inline Floats dot_bf16(Floats sum, Bytes x, uint32_t pair) {
#ifdef __AVX512BF16__
    return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(x.v),
                             reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(pair))))};
#else
    __m512 low = _mm512_castsi512_ps(_mm512_slli_epi32(x.v, 16));
    __m512 high = _mm512_castsi512_ps(_mm512_and_si512(x.v, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
    sum.v = _mm512_fmadd_ps(low, _mm512_set1_ps(float_of(pair << 16)), sum.v);
    return {_mm512_fmadd_ps(high, _mm512_set1_ps(float_of(pair & 0xFFFF0000u)), sum.v)};
#endif
}
inline float sum_of_eight(__m256 x) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float reduce_sum(Floats x) {
    return sum_of_eight(_mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1)));
}
inline float reduce_max(Floats x) { return _mm512_reduce_max_ps(x.v); }
inline int32_t reduce_sum(Ints x) { return _mm512_reduce_add_epi32(x.v); }

#else  // AVX2: vectors of two halves.

struct Floats {
    __m256 a, b;
};
struct Ints {
    __m256i a, b;
};
struct Bytes {
    __m256i a, b;
};

inline Floats zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Floats broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Floats x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
inline Floats operator+(Floats x, Floats y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Floats operator-(Floats x, Floats y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Floats operator*(Floats x, Floats y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Floats operator/(Floats x, Floats y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Floats fma(Floats x, Floats y, Floats z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline Floats max(Floats x, Floats y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Floats min(Floats x, Floats y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline Floats absolute(Floats x) {
    __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
    return {_mm256_and_ps(x.a, mask), _mm256_and_ps(x.b, mask)};
}
inline Floats round_even(Floats x) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, nearest), _mm256_round_ps(x.b, nearest)};
}
inline Floats select_less(Floats x, Floats y, Floats yes, Floats no) {
    return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
            _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
inline Ints to_ints(Floats x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline Floats to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline __m256 half_scale_by_power_of_two(__m256 x, __m256i n) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(n, 23)));
}
inline Floats scale_by_power_of_two(Floats x, Ints n) {
    return {half_scale_by_power_of_two(x.a, n.a), half_scale_by_power_of_two(x.b, n.b)};
}
inline __m256 load_half_bf16(const uint16_t* p) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
inline Floats load_bf16(const uint16_t* p) { return {load_half_bf16(p), load_half_bf16(p + 8)}; }
inline Floats load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline __m256 load_half_int8(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline Floats load_int8(const int8_t* p) { return {load_half_int8(p), load_half_int8(p + 8)}; }
inline __m256i half_to_bf16(__m256 x) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded_bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded_bits, quiet, nan), 16);
}
inline void store_bf16(uint16_t* p, Floats x) {
    __m256i packed = _mm256_packus_epi32(half_to_bf16(x.a), half_to_bf16(x.b));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
}
inline void store_int8(int8_t* p, Ints x) {
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xD8);
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

inline Ints broadcast_ints(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Ints load_u8(const uint8_t* p) {
    return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline Ints operator+(Ints x, Ints y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline Ints operator*(Ints x, Ints y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
inline Ints operator^(Ints x, Ints y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
inline Ints operator&(Ints x, Ints y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
template <int BITS>
inline Ints shift_right(Ints x) {
    return {_mm256_srli_epi32(x.a, BITS), _mm256_srli_epi32(x.b, BITS)};
}
inline Ints bits_of(Floats x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
inline Floats floats_of(Ints bits) { return {_mm256_castsi256_ps(bits.a), _mm256_castsi256_ps(bits.b)}; }
inline Ints iota(int32_t first) {
    __m256i eight = _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
    return {eight, _mm256_add_epi32(eight, _mm256_set1_epi32(8))};
}
inline void store_ints(int32_t* p, Ints x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
}
inline uint32_t mask_greater(Floats x, Floats y) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ))) |
           static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ))) << 8;
}
inline uint32_t mask_greater_equal(Floats x, Floats y) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ))) |
           static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ))) << 8;
}
inline uint32_t mask_nan(Floats x) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q))) |
           static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q))) << 8;
}

inline Bytes load_bytes(const uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
inline Bytes low_nibbles(Bytes x) {
    __m256i mask = _mm256_set1_epi8(0x0F);
    return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
}
inline Bytes high_nibbles(Bytes x) {
    __m256i mask = _mm256_set1_epi8(0x0F);
    return {_mm256_and_si256(_mm256_srli_epi16(x.a, 4), mask), _mm256_and_si256(_mm256_srli_epi16(x.b, 4), mask)};
}
inline __m256i half_dot_int8(__m256i sum, __m256i x, __m256i y) {
    // maddubs would saturate: the sum of two products of full range exceeds 16 bits.
    __m256i low_mask = _mm256_set1_epi16(0x00FF);
    __m256i even = _mm256_madd_epi16(_mm256_and_si256(x, low_mask), _mm256_srai_epi16(_mm256_slli_epi16(y, 8), 8));
    __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(x, 8), _mm256_srai_epi16(y, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
inline Ints dot_int8(Ints sum, Bytes x, int32_t four) {
    __m256i y = _mm256_set1_epi32(four);
    return {half_dot_int8(sum.a, x.a, y), half_dot_int8(sum.b, x.b, y)};
}
inline __m256 low_bf16(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline __m256 high_bf16(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
}
inline __m256 half_dot_bf16(__m256 sum, __m256i x, __m256i y) {
    return _mm256_fmadd_ps(high_bf16(x), high_bf16(y), _mm256_fmadd_ps(low_bf16(x), low_bf16(y), sum));
}
inline Floats dot_bf16(Floats sum, Bytes x, uint32_t pair) {
    __m256i y = _mm256_set1_epi32(static_cast<int>(pair));
    return {half_dot_bf16(sum.a, x.a, y), half_dot_bf16(sum.b, x.b, y)};
}
inline float reduce_sum(Floats x) {
    __m256 eight = _mm256_add_ps(x.a, x.b);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float reduce_max(Floats x) {
    float lanes[LANES], most;
    store(lanes, x);
    most = lanes[0];
    for (int i = 1; i < LANES; ++i) most = lanes[i] > most ? lanes[i] : most;
    return most;
}
inline int32_t reduce_sum(Ints x) {
    int32_t lanes[LANES], total = 0;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), x.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes + 8), x.b);
    for (int i = 0; i < LANES; ++i) total += lanes[i];
    return total;
}

#endif

// exp(x), within two units in the last place; 0 below the smallest normal number.
inline Floats exponential(Floats x) {
    const Floats lowest = broadcast(-87.33654f);
    Floats bounded = min(broadcast(88.37626f), max(lowest, x));  // In this order NaN is preserved.
    Floats n = round_even(bounded * broadcast(1.44269504f));
    Floats r = fma(n, broadcast(-0.693359375f), bounded);
    r = fma(n, broadcast(2.12194440e-4f), r);
    Floats p = broadcast(1.9875691500e-4f);
    p = fma(p, r, broadcast(1.3981999507e-3f));
    p = fma(p, r, broadcast(8.3334519073e-3f));
    p = fma(p, r, broadcast(4.1665795894e-2f));
    p = fma(p, r, broadcast(1.6666665459e-1f));
    p = fma(p, r, broadcast(5.0000001201e-1f));
    p = fma(p, r * r, r + broadcast(1.0f));
    return select_less(x, lowest, zeros(), scale_by_power_of_two(p, to_ints(n)));
}

// The natural logarithm of a positive normal number, within two units in the last place.
inline Floats logarithm(Floats x) {
    Ints exponent = shift_right<23>(bits_of(x)) + broadcast_ints(-126);
    Floats mantissa =
        floats_of((bits_of(x) & broadcast_ints(0x7FFFFF)) + broadcast_ints(0x3F000000));  // From 1/2 to 1.
    const Floats root = broadcast(0.70710678f);
    Floats e = to_floats(exponent) - select_less(mantissa, root, broadcast(1.0f), zeros());
    Floats m = mantissa - broadcast(1.0f) + select_less(mantissa, root, mantissa, zeros());
    Floats p = broadcast(7.0376836292e-2f);
    p = fma(p, m, broadcast(-1.1514610310e-1f));
    p = fma(p, m, broadcast(1.1676998740e-1f));
    p = fma(p, m, broadcast(-1.2420140846e-1f));
    p = fma(p, m, broadcast(1.4249322787e-1f));
    p = fma(p, m, broadcast(-1.6668057665e-1f));
    p = fma(p, m, broadcast(2.0000714765e-1f));
    p = fma(p, m, broadcast(-2.4999993993e-1f));
    p = fma(p, m, broadcast(3.3333331174e-1f));
    Floats square = m * m;
    Floats y = fma(e, broadcast(-2.12194440e-4f), p * m * square);
    y = fma(square, broadcast(-0.5f), y);
    return fma(e, broadcast(0.693359375f), m + y);
}

inline Floats hyperbolic_tangent(Floats x) {
    // Computed from exp(-2|x|), which cannot overflow.
    Floats e = exponential(absolute(x) * broadcast(-2.0f));
    Floats t = (broadcast(1.0f) - e) / (broadcast(1.0f) + e);
    return select_less(x, zeros(), zeros() - t, t);
}

// For the end of a row, where fewer than sixteen numbers are left.
inline Floats load_partial(const float* p, int count) {
    float lanes[LANES] = {};
    std::memcpy(lanes, p, count * sizeof(float));
    return load(lanes);
}
inline void store_partial(float* p, Floats x, int count) {
    float lanes[LANES];
    store(lanes, x);
    std::memcpy(p, lanes, count * sizeof(float));
}

}  // namespace archerfish::ISA
