// What linear maps of int8 weights compute with: words of rounded numbers, panels of weights, and scales.
#pragma once
#include "lines.h"

namespace mha { namespace MHA_LEVEL {

typedef Bits<float> Sums;

// A word of 32 bits holds GROUP neighbouring integers of a row of x, or weights of a column.
#if defined(__AVX512VNNI__)
constexpr int GROUP = 4, OFFSET = 128;  // weights become 1 ... 255: the instruction multiplies unsigned bytes by signed ones
typedef uint8_t Stored;
typedef int8_t Rounded;
MHA_INLINE Sums add_products(Sums sums, Sums w, Sums x) {
    return (Sums)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, (__m512i)x);
}
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr int GROUP = 4, OFFSET = 0;
typedef int8_t Stored;
typedef int8_t Rounded;
MHA_INLINE Sums add_products(Sums sums, Sums w, Sums x) {
    return (Sums)vdotq_s32((int32x4_t)sums, (int8x16_t)w, (int8x16_t)x);
}
#else
constexpr int GROUP = 2, OFFSET = 0;
typedef int16_t Stored;
typedef int16_t Rounded;
MHA_INLINE Sums add_products(Sums sums, Sums w, Sums x) {
#if defined(__AVX512F__)
    return sums + (Sums)_mm512_madd_epi16((__m512i)w, (__m512i)x);
#elif defined(__AVX2__)
    return sums + (Sums)_mm256_madd_epi16((__m256i)w, (__m256i)x);
#elif defined(__x86_64__)
    return sums + (Sums)_mm_madd_epi16((__m128i)w, (__m128i)x);
#else
    auto low = [](Sums v) __attribute__((always_inline)) { return (Sums)((Words<float>)v << 16) >> 16; };
    return sums + low(w) * low(x) + (w >> 16) * (x >> 16);
#endif
}
#endif

// A panel holds some columns of the weight: for each word of a row of x, PANEL vectors of words of columns. The sums of TILE
// rows with a panel stay in registers.
constexpr int TILE = 6, PANEL = 2, INPUTS = 64;  // INPUTS: of x that share a scale, as in algebra/int8.py
constexpr ptrdiff_t COLUMNS = PANEL * LANES<float>;

inline ptrdiff_t words(ptrdiff_t inputs) { return (inputs + GROUP - 1) / GROUP; }
inline ptrdiff_t groups(ptrdiff_t inputs) { return (inputs + INPUTS - 1) / INPUTS; }
inline ptrdiff_t rounded_bytes(ptrdiff_t inputs) { return groups(inputs) * INPUTS * sizeof(Rounded); }  // of a row of x

// Lines that are read at once, rows of integers or words of a panel. Those behind the last are in memory, whatever they hold.
#if defined(__AMX_INT8__)
constexpr ptrdiff_t LINES = 16;
#else
constexpr ptrdiff_t LINES = 1;
#endif

static size_t int8_bytes(ptrdiff_t inputs, ptrdiff_t outputs) {
    return ((outputs + COLUMNS - 1) / COLUMNS * words(inputs) + LINES - 1) * PANEL * BYTES;
}

static void int8_pack(const int8_t* values, ptrdiff_t inputs, ptrdiff_t outputs, char* panels) {
    Stored* to = (Stored*)panels;
    for (ptrdiff_t first = 0; first < outputs; first += COLUMNS)
        for (ptrdiff_t k = 0; k < words(inputs) * GROUP; k += GROUP)
            for (ptrdiff_t j = first; j < first + COLUMNS; ++j)
                for (ptrdiff_t i = k; i < k + GROUP; ++i)
                    *to++ = (Stored)((i < inputs && j < outputs ? values[i * outputs + j] : 0) + OFFSET);
}

// What a group of a row was divided by, and what OFFSET adds to its products.
struct Scaled {
    float scale;
    int32_t added;
};

// Round n numbers to integers as algebra/int8.py does. Behind them are zeros, up to a whole group.
inline Scaled round_group(const float* x, ptrdiff_t n, Rounded* to) {
    typedef Rounded Narrow __attribute__((vector_size(LANES<float> * sizeof(Rounded))));
    Sums top = {}, sums = {};
    each_vector(n, [&](ptrdiff_t i, ptrdiff_t some) __attribute__((always_inline)) {
        Sums size = (Sums)load_some(x + i, some) & 0x7fffffff;  // in the order of the numbers; infinity and NaN come last
        top = size > top ? size : top;
    });
    const float largest = combine<float>((Vec<float>)top, [](Vec<float> a, Vec<float> b) __attribute__((always_inline)) {
        return (Vec<float>)((Sums)a > (Sums)b ? (Sums)a : (Sums)b);
    });
    const bool finite = largest < __builtin_inff();
    const bool zero = !finite || largest < 0x1p-120f;
    if (zero || n < INPUTS) memset(to, 0, INPUTS * sizeof(Rounded));
    if (zero) return {finite ? largest / 127 : __builtin_nanf(""), 0};
    const Vec<float> factor = broadcast(127 / largest), shift = broadcast(0x1.8p23f);  // which rounds a number, ties to even
    each_vector(n, [&](ptrdiff_t i, ptrdiff_t some) __attribute__((always_inline)) {
        Sums integers = (Sums)(load_some(x + i, some) * factor + shift) - (Sums)shift;
        Narrow narrow = __builtin_convertvector(integers, Narrow);
        memcpy(to + i, &narrow, sizeof narrow);
        sums += integers;
    });
    const float bits = combine<float>((Vec<float>)sums, [](Vec<float> a, Vec<float> b) __attribute__((always_inline)) {
        return (Vec<float>)((Sums)a + (Sums)b);
    });
    int32_t total;
    memcpy(&total, &bits, sizeof bits);
    return {largest / 127, total * OFFSET};
}

// Some rows of x: their integers, and the scales of their groups.
struct RoundedRows {
    const char* integers;
    const Scaled* groups;
    ptrdiff_t step;         // bytes from row to row
};

// Write the results of a vector of columns in a row.
MHA_INLINE void finish(const Int8Map& m, Vec<float> total, ptrdiff_t column, float* y) {
    const ptrdiff_t left = m.w->outputs - column;
    const Vec<float> v = total * load(m.w->scale + column);
    if (left >= LANES<float>)  // a copy of a known size is one instruction
        store(y + column, m.b ? v + load(m.b + column) : v);
    else if (left > 0)
        store_some(y + column, m.b ? v + load_some(m.b + column, left) : v, left);
}

static size_t int8_scratch(ptrdiff_t inputs, ptrdiff_t rows) {
    return (rows + LINES - 1) * (rounded_bytes(inputs) + groups(inputs) * sizeof(Scaled));
}

}}  // namespace mha::MHA_LEVEL
