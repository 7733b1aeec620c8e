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

template <class T> void widen(Kind kind, const uint16_t* from, T* to, ptrdiff_t n) {
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

// Read n numbers, step bytes apart.
template <class T> void read(Kind kind, const char* from, ptrdiff_t step, T* to, ptrdiff_t n) {
    if (size_of(kind) == 2) {
        uint16_t some[CHUNK];
        for (; n > 0; n -= CHUNK, from += CHUNK * step, to += CHUNK) {
            ptrdiff_t count = n < CHUNK ? n : CHUNK;
            if (step == 2)
                memcpy(some, from, 2 * count);
            else
                for (ptrdiff_t i = 0; i < count; ++i) memcpy(some + i, from + i * step, 2);
            widen<T>(kind, some, to, count);
        }
    } else if (kind == KIND<T> && step == (ptrdiff_t)sizeof(T)) {
        memcpy(to, from, n * sizeof(T));
    } else if (kind == FLOAT32) {
        for (ptrdiff_t i = 0; i < n; ++i) {
            float x;
            memcpy(&x, from + i * step, 4);
            to[i] = (T)x;
        }
    } else {
        for (ptrdiff_t i = 0; i < n; ++i) {
            double x;
            memcpy(&x, from + i * step, 8);
            to[i] = (T)x;
        }
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

// Return rows first ... first + n of an array: where they lie if they can be computed with, else a copy in scratch, padded with
// zeros to ``padded`` columns.
template <class T>
Matrix<T> rows_of(const Array& a, const char* data, ptrdiff_t first, ptrdiff_t n, ptrdiff_t width, ptrdiff_t padded,
                  T* scratch) {
    const char* from = data + first * a.step[1];
    constexpr ptrdiff_t size = sizeof(T);
    bool together = a.step[2] == size || width == 1;
    if (a.kind == KIND<T> && together && a.step[1] % size == 0 && (uintptr_t)from % size == 0 && width == padded)
        return {(const T*)from, a.step[1] / size};
    for (ptrdiff_t i = 0; i < n; ++i) {
        read<T>(a.kind, from + i * a.step[1], a.step[2], scratch + i * padded, width);
        memset(scratch + i * padded + width, 0, (padded - width) * size);
    }
    return {scratch, padded};
}

}}  // namespace mha::MHA_LEVEL
