// The product that computes scores and adds up values.
#pragma once
#include "simd.h"

namespace mha { namespace MHA_LEVEL {

constexpr int VECTORS = 3;                            // 3 x 8, or 3 x 4, sums fill the registers
constexpr int TOGETHER = REGISTERS == 32 ? 8 : 4;     // keys, or features, of a product
constexpr int BLOCK = 128;                            // keys whose weights are kept until they multiply values
template <class T> constexpr int ROWS = VECTORS * LANES<T>;

// c[j][v] += sum over i < n of a[i][v] b(i, j), where b(i, j) is b[j * step + i] or, if ACROSS, b[i * step + j]. a and b move
// on. With PER = 2, a[i][v] and b(i, j) are pairs of bfloat16 numbers; the products of first and of second ones are added.
template <class T, int PER, int J, int V, bool ACROSS>
MHA_INLINE void multiply(Vec<T> (&c)[J][V], const T*& a, const T*& b, ptrdiff_t step, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; ++i) {
        Vec<T> x[V];
        unroll<V>([&](auto v) __attribute__((always_inline)) { x[v] = load(a + v * LANES<T>); });
        unroll<J>([&](auto j) __attribute__((always_inline)) {
            Vec<T> y = broadcast(ACROSS ? b[j] : b[j * step]);
            forget(a);
            unroll<V>([&](auto v) __attribute__((always_inline)) {
                Vec<T> z = v < KEPT ? x[v] : load(a + v * LANES<T>);
                if constexpr (PER == 1)
                    c[j][v] = fma(z, y, c[j][v]);
                else
                    c[j][v] = dot(z, y, c[j][v]);
            });
        });
        a += ROWS<T>;
        b += ACROSS ? step : 1;
    }
}

}}  // namespace mha::MHA_LEVEL
