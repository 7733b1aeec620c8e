// The tiles of AMX in plain C++, for tests on processors without them: compiled in front of every source, it gives the level
// avx512_bf16 the code of avx512_amx. Tiles are read and written as arrays, so sanitizers see what the code reads.
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512BF16__) && !defined(__AMX_TILE__)
#define __AMX_TILE__ 1
#define __AMX_BF16__ 1
#define __AMX_INT8__ 1

namespace emulated_amx {

constexpr int LINES = 16, BYTES = 64;
struct Tiles {
    unsigned char at[8][LINES][BYTES];
    bool configured;
};
inline Tiles& tiles() {
    static thread_local Tiles all;
    return all;
}

// A processor refuses instructions between a release and the next configuration.
inline unsigned char (*tile(int number))[BYTES] {
    if (!tiles().configured) __builtin_trap();
    return tiles().at[number];
}

inline void configure(const void* palette) {
    const unsigned char* bytes = (const unsigned char*)palette;
    if (bytes[0] != 1) __builtin_trap();
    for (int i = 0; i < 8; ++i)
        if (bytes[16 + 2 * i] != BYTES || bytes[48 + i] != LINES) __builtin_trap();
    memset(&tiles(), 0, sizeof(Tiles));
    tiles().configured = true;
}

inline void load(int to, const void* from, ptrdiff_t step) {
    for (int i = 0; i < LINES; ++i) memcpy(tile(to)[i], (const char*)from + i * step, BYTES);
}

inline void store(int from, void* to, ptrdiff_t step) {
    for (int i = 0; i < LINES; ++i) memcpy((char*)to + i * step, tile(from)[i], BYTES);
}

template <class Number> Number number(const void* from) {
    Number x;
    memcpy(&x, from, sizeof x);
    return x;
}

// c += a b, where a word of 32 bits holds several numbers. ``product`` multiplies two words, and adds to a sum.
template <class Sum, class Product> void multiply(int c, int a, int b, Product product) {
    for (int i = 0; i < LINES; ++i)
        for (int j = 0; j < LINES; ++j) {
            Sum sum = number<Sum>(tile(c)[i] + 4 * j);
            for (int k = 0; k < LINES; ++k) sum = product(sum, tile(a)[i] + 4 * k, tile(b)[k] + 4 * j);
            memcpy(tile(c)[i] + 4 * j, &sum, sizeof sum);
        }
}

inline float widened(const void* bfloat16) {
    const uint32_t bits = (uint32_t)number<uint16_t>(bfloat16) << 16;
    return number<float>(&bits);
}

inline float add_pairs(float sum, const unsigned char* a, const unsigned char* b) {
    return sum + widened(a) * widened(b) + widened(a + 2) * widened(b + 2);
}

// Signed bytes of a, unsigned ones of b.
inline int32_t add_bytes(int32_t sum, const unsigned char* a, const unsigned char* b) {
    for (int i = 0; i < 4; ++i) sum = (int32_t)((uint32_t)sum + (uint32_t)((int8_t)a[i] * b[i]));
    return sum;
}

}  // namespace emulated_amx

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbsud
#define _tile_loadconfig(palette) emulated_amx::configure(palette)
#define _tile_release() (emulated_amx::tiles().configured = false)
#define _tile_zero(number) memset(emulated_amx::tile(number), 0, 1024)
#define _tile_loadd(number, from, step) emulated_amx::load(number, from, step)
#define _tile_stored(number, to, step) emulated_amx::store(number, to, step)
#define _tile_dpbf16ps(c, a, b) emulated_amx::multiply<float>(c, a, b, emulated_amx::add_pairs)
#define _tile_dpbsud(c, a, b) emulated_amx::multiply<int32_t>(c, a, b, emulated_amx::add_bytes)
#endif
