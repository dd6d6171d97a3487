// Matrix tiles (AMX): eight registers of up to 16 rows of 64 bytes, and dot products of two of them added to a third.
//
// Written in assembly, because the compiler's intrinsics need register numbers as literals, and because gcc 12 assumes
// that loading a configuration reads only eight bytes of it. With ARCHERFISH_TILES_IN_SOFTWARE the instructions are
// emulated, for CPUs without tiles and for sanitizers, which do not see what tiles load.
#pragma once

#include <cstdint>
#include <cstring>

namespace archerfish::ISA {

struct alignas(64) TileShapes {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int tile, int64_t num_rows, int64_t num_bytes) {
        rows[tile] = static_cast<uint8_t>(num_rows);
        row_bytes[tile] = static_cast<uint16_t>(num_bytes);
    }
};

#ifndef ARCHERFISH_TILES_IN_SOFTWARE

inline void configure_tiles(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory"); }
inline void release_tiles() { asm volatile("tilerelease" ::: "memory"); }
template <int T>
inline void tile_zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
}
template <int T>
inline void tile_load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(from), "r"(stride) : "memory");
}
template <int T>
inline void tile_store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(to), "r"(stride) : "memory");
}
// Dot products of four signed bytes, added to 32 bits.
template <int C, int A, int B>
inline void tile_dot_int8() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
// Dot products of two bfloat16 numbers, added to float32.
template <int C, int A, int B>
inline void tile_dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

#else

struct Tile {
    uint8_t bytes[16][64];
};
inline thread_local Tile tiles[8];
inline thread_local TileShapes tile_shapes;

inline void configure_tiles(const TileShapes& shapes) { tile_shapes = shapes; }
inline void release_tiles() { tile_shapes = TileShapes(); }
template <int T>
inline void tile_zero() {
    std::memset(&tiles[T], 0, sizeof(Tile));
}
template <int T>
inline void tile_load(const void* from, int64_t stride) {
    tile_zero<T>();
    for (int r = 0; r < tile_shapes.rows[T]; ++r)
        std::memcpy(tiles[T].bytes[r], static_cast<const uint8_t*>(from) + r * stride, tile_shapes.row_bytes[T]);
}
template <int T>
inline void tile_store(void* to, int64_t stride) {
    for (int r = 0; r < tile_shapes.rows[T]; ++r)
        std::memcpy(static_cast<uint8_t*>(to) + r * stride, tiles[T].bytes[r], tile_shapes.row_bytes[T]);
}
template <int C, int A, int B>
inline void tile_dot_int8() {
    for (int m = 0; m < tile_shapes.rows[C]; ++m)
        for (int n = 0; n < tile_shapes.row_bytes[C] / 4; ++n) {
            int32_t& sum = reinterpret_cast<int32_t*>(tiles[C].bytes[m])[n];
            for (int k = 0; k < tile_shapes.row_bytes[A]; ++k)
                sum += static_cast<int>(static_cast<int8_t>(tiles[A].bytes[m][k])) *
                       static_cast<int>(static_cast<int8_t>(tiles[B].bytes[k / 4][4 * n + k % 4]));
        }
}
template <int C, int A, int B>
inline void tile_dot_bf16() {
    auto number = [](const uint8_t* bytes, int index) {
        uint32_t bits = static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(bytes)[index]) << 16;
        float value;
        std::memcpy(&value, &bits, 4);
        return value;
    };
    for (int m = 0; m < tile_shapes.rows[C]; ++m)
        for (int n = 0; n < tile_shapes.row_bytes[C] / 4; ++n) {
            float sums[2] = {};
            for (int k = 0; k < tile_shapes.row_bytes[A] / 2; ++k)
                sums[k % 2] += number(tiles[A].bytes[m], k) * number(tiles[B].bytes[k / 2], 2 * n + k % 2);
            reinterpret_cast<float*>(tiles[C].bytes[m])[n] += sums[0] + sums[1];
        }
}

#endif

}  // namespace archerfish::ISA
