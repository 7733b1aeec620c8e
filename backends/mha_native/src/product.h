// The product that computes scores and adds up values.
#pragma once
#include "simd.h"

namespace mha { namespace MHA_LEVEL {

constexpr int VECTORS = 3;                            // 3 x 8, or 3 x 4, sums fill the registers
constexpr int TOGETHER = REGISTERS == 32 ? 8 : 4;     // keys, or features, of a product
constexpr int BLOCK = 128;                            // keys whose weights are kept until they multiply values
template <class T, int N = VECTORS> constexpr int ROWS = N * LANES<T>;

// Call f(j, at) for parts of n: j is J as often as it fits, then, if FINE, 4 and 2, then 1. It is a constant.
template <int J, bool FINE = true, class F> MHA_INLINE void in_parts(ptrdiff_t n, F f) {
    ptrdiff_t at = 0;
    for (; at + J <= n; at += J) f(Constant<J>{}, at);
    if constexpr (FINE && J > 4)
        if (n - at >= 4) f(Constant<4>{}, at), at += 4;
    if constexpr (FINE && J > 2)
        if (n - at >= 2) f(Constant<2>{}, at), at += 2;
    for (; at < n; ++at) f(Constant<1>{}, at);
}

// c[j][v] += sum over i < n of a[i][v] b(i, j), where a[i][v] is a vector at a[i * width + v * LANES], and b(i, j) is
// b[j * step + i] or, if ACROSS, b[i * step + j]. a and b move on. With PER = 2, a[i][v] and b(i, j) are pairs of bfloat16
// numbers; the products of first and of second ones are added.
template <class T, int PER, int J, int V, bool ACROSS>
MHA_INLINE void multiply(Vec<T> (&c)[J][V], const T*& a, const T*& b, ptrdiff_t step, ptrdiff_t n, ptrdiff_t width = ROWS<T>) {
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
        a += width;
        b += ACROSS ? step : 1;
    }
}

// Call f(j, v) for all j < J and v < V, which are constants.
template <int J, int V, class F> MHA_INLINE void each(F f) {
    unroll<J>([&](auto j) __attribute__((always_inline)) {
        unroll<V>([&](auto v) __attribute__((always_inline)) { f(j, v); });
    });
}

// Add products, likewise, to J rows of V vectors in memory, which lie to_step numbers apart.
template <class T, int PER, int J, int V, bool ACROSS>
__attribute__((noinline)) void add_product(T* to, ptrdiff_t to_step, const T* a, ptrdiff_t width, const T* b, ptrdiff_t step,
                                           ptrdiff_t n) {
    Vec<T> c[J][V];
    each<J, V>([&](auto j, auto v) __attribute__((always_inline)) { c[j][v] = load(to + j * to_step + v * LANES<T>); });
    multiply<T, PER, J, V, ACROSS>(c, a, b, step, n, width);
    each<J, V>([&](auto j, auto v) __attribute__((always_inline)) { store(to + j * to_step + v * LANES<T>, c[j][v]); });
}

}}  // namespace mha::MHA_LEVEL
