// Numbers in memory, of any kind and step, as numbers of the computation, and back.
#pragma once
#include "problem.h"
#include "simd.h"

namespace mha { namespace MHA_LEVEL {

template <class T> constexpr Kind KIND = sizeof(T) == 8 ? FLOAT64 : FLOAT32;

MHA_INLINE float from_bits(uint32_t x) {
    float y;
    memcpy(&y, &x, 4);
    return y;
}
MHA_INLINE uint32_t to_bits(float x) {
    uint32_t y;
    memcpy(&y, &x, 4);
    return y;
}

MHA_INLINE float from_half(uint16_t h) {
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13;
    float y = from_bits(magnitude) * 0x1p112f;  // the exponents' biases differ by 112; exact for subnormal numbers too
    uint32_t bits = magnitude >= 0x0f800000 ? magnitude | 0x7f800000 : to_bits(y);  // infinity and NaN
    return from_bits(bits | (uint32_t)(h & 0x8000) << 16);
}
MHA_INLINE float from_bfloat16(uint16_t h) { return from_bits((uint32_t)h << 16); }

// To the nearest number, ties to even.
inline uint16_t to_half(float x) {
    uint32_t bits = to_bits(x), sign = bits >> 16 & 0x8000, m = bits & 0x7fffffff;
    if (m > 0x7f800000) return (uint16_t)(sign | 0x7e00);    // NaN
    if (m >= 0x477ff000) return (uint16_t)(sign | 0x7c00);   // rounds to infinity
    if (m < 0x38800000) return (uint16_t)(sign | (to_bits(from_bits(m) + 0.5f) - to_bits(0.5f)));  // subnormal
    return (uint16_t)(sign | (m - 0x38000000 + 0xfff + (m >> 13 & 1)) >> 13);
}
inline uint16_t to_bfloat16(float x) {
    uint32_t bits = to_bits(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);  // NaN
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

constexpr ptrdiff_t CHUNK = 64;

template <class T> void from_halves(Kind kind, const uint16_t* from, T* to, ptrdiff_t n) {
    ptrdiff_t i = 0;
    if (kind == BFLOAT16) {
        for (; i < n; ++i) to[i] = (T)from_bfloat16(from[i]);
        return;
    }
#if defined(__F16C__)
    if constexpr (sizeof(T) == 4)
        for (; i + 8 <= n; i += 8) _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(from + i))));
#endif
    for (; i < n; ++i) to[i] = (T)from_half(from[i]);
}

// Copy n numbers of two bytes, step bytes apart.
inline void copy_halves(const char* from, ptrdiff_t step, uint16_t* to, ptrdiff_t n) {
    if (step == 2) {
        memcpy(to, from, 2 * n);
        return;
    }
    for (ptrdiff_t i = 0; i < n; ++i) memcpy(to + i, from + i * step, 2);
}

template <class From, class T> void read_wide(const char* from, ptrdiff_t step, T* to, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; ++i) {
        From x;
        memcpy(&x, from + i * step, sizeof x);
        to[i] = (T)x;
    }
}

// Read n numbers, step bytes apart.
template <class T> void read(Kind kind, const char* from, ptrdiff_t step, T* to, ptrdiff_t n) {
    if (size_of(kind) == 2) {
        uint16_t some[CHUNK];
        for (; n > 0; n -= CHUNK, from += CHUNK * step, to += CHUNK) {
            ptrdiff_t count = n < CHUNK ? n : CHUNK;
            copy_halves(from, step, some, count);
            from_halves<T>(kind, some, to, count);
        }
    } else if (kind == KIND<T> && step == (ptrdiff_t)sizeof(T)) {
        memcpy(to, from, n * sizeof(T));
    } else {
        kind == FLOAT32 ? read_wide<float>(from, step, to, n) : read_wide<double>(from, step, to, n);
    }
}

// Write n numbers next to each other.
template <class T> void write(Kind kind, char* to, const T* from, ptrdiff_t n) {
    if (kind == KIND<T>) {
        memcpy(to, from, n * sizeof(T));
        return;
    }
    for (ptrdiff_t i = 0; i < n; ++i) {
        uint16_t h = kind == FLOAT16 ? to_half((float)from[i]) : to_bfloat16((float)from[i]);
        memcpy(to + 2 * i, &h, 2);
    }
}

// A matrix of numbers of the computation, in the caller's memory.
template <class T> struct Matrix {
    const T* data;
    ptrdiff_t step;  // numbers from one row to the next
};

// Whether a row of ``width`` numbers can be computed with where it lies, as ``padded`` numbers, or pairs of bfloat16 numbers.
template <class T, int PER> bool lies_well(const Array& a, const char* from, ptrdiff_t width, ptrdiff_t padded) {
    bool together = a.step[2] * PER == (ptrdiff_t)sizeof(T) || (width == 1 && PER == 1);
    return a.kind == (PER == 1 ? KIND<T> : BFLOAT16) && together && (uintptr_t)from % sizeof(T) == 0 && width == padded * PER;
}

// Return a row of an array: where it lies if it can be computed with, else a copy in scratch, padded with zeros.
template <class T, int PER>
const T* row_of(const Array& a, const char* from, ptrdiff_t width, ptrdiff_t padded, T* scratch) {
    if (lies_well<T, PER>(a, from, width, padded)) return (const T*)from;
    memset(scratch, 0, padded * sizeof(T));
    if constexpr (PER == 1)
        read<T>(a.kind, from, a.step[2], scratch, width);
    else
        copy_halves(from, a.step[2], (uint16_t*)scratch, width);
    return scratch;
}

// Rows that follow each other in an array; those of integers have scales, ``step`` bytes apart.
struct Rows {
    const Array& a;
    const char *data, *scales;
    ptrdiff_t step;
};

// Write a row of integers times its scale, padded with zeros.
template <class T> void widen_row(const char* from, ptrdiff_t step, T scale, T* to, ptrdiff_t width, ptrdiff_t padded) {
    const int8_t* x = (const int8_t*)from;
    ptrdiff_t i = 0;
    for (; step == 1 && i + LANES<T> <= width; i += LANES<T>) store(to + i, load<T>(x + i) * broadcast(scale));
    for (; i < width; ++i) to[i] = (T)x[i * step] * scale;
    for (; i < padded; ++i) to[i] = 0;
}

template <class T> T scale_of(const Rows& rows, ptrdiff_t row) {
    T scale;
    memcpy(&scale, rows.scales + row * rows.step, sizeof scale);
    return scale;
}

// Return rows first ... first + n, likewise; a copy in any case unless ``lying`` rows will do.
template <class T, int PER>
Matrix<T> rows_of(const Rows& rows, ptrdiff_t first, ptrdiff_t n, ptrdiff_t width, ptrdiff_t padded, T* scratch,
                  bool lying = true) {
    const Array& a = rows.a;
    const char* from = rows.data + first * a.step[1];
    constexpr ptrdiff_t size = sizeof(T);
    if (PER == 1 && a.kind == INT8) {
        for (ptrdiff_t i = 0; i < n; ++i)
            widen_row(from + i * a.step[1], a.step[2], scale_of<T>(rows, first + i), scratch + i * padded, width, padded);
        return {scratch, padded};
    }
    if (lying && lies_well<T, PER>(a, from, width, padded) && a.step[1] % size == 0) return {(const T*)from, a.step[1] / size};
    for (ptrdiff_t i = 0; i < n; ++i) {
        const T* row = row_of<T, PER>(a, from + i * a.step[1], width, padded, scratch + i * padded);
        for (ptrdiff_t j = 0; j < padded && row != scratch + i * padded; ++j) scratch[i * padded + j] = row[j];
    }
    return {scratch, padded};
}

// Up to LANES numbers of two bytes, each in a word.
MHA_INLINE Words<float> words_of(const char* from, ptrdiff_t step, ptrdiff_t n) {
    if (step == 2 && n >= LANES<float>) return widen<float>((const uint16_t*)from);
    uint16_t line[LANES<float>] = {};
    copy_halves(from, step, line, n < LANES<float> ? n : LANES<float>);
    return widen<float>(line);
}

// Return rows likewise or, with PER = 2, two rows' numbers of a column in pairs; a last row is paired with zeros.
template <class T, int PER>
Matrix<T> pairs_of_rows(const Rows& rows, ptrdiff_t first, ptrdiff_t n, ptrdiff_t width, ptrdiff_t padded, T* scratch) {
    if constexpr (PER == 1) {
        return rows_of<T, 1>(rows, first, n, width, width, scratch);
    } else {
        const Array& a = rows.a;
        const char* from = rows.data + first * a.step[1];
        ptrdiff_t step = a.step[2];
        for (ptrdiff_t i = 0; i < n; i += 2, from += 2 * a.step[1])
            for (ptrdiff_t e = 0; e < width; e += LANES<T>) {
                Words<T> x = words_of(from + e * step, step, width - e);
                if (i + 1 < n) x |= words_of(from + a.step[1] + e * step, step, width - e) << 16;
                store(scratch + i / 2 * padded + e, (Vec<T>)x);
            }
        return {scratch, padded};
    }
}

}}  // namespace mha::MHA_LEVEL
