// GELU, its gradient, and norms of rows of float32 numbers.
#pragma once
#include <math.h>

#include "exponential.h"
#include "problem.h"

namespace mha { namespace MHA_LEVEL {

// Some of ``n`` numbers as a vector, whose other lanes are ``rest``.
MHA_INLINE Vec<float> load_some(const float* from, ptrdiff_t n, float rest = 0) {
    if (n >= LANES<float>) return load(from);
    Vec<float> x = broadcast(rest);
    memcpy(&x, from, n * sizeof(float));
    return x;
}
MHA_INLINE void store_some(float* to, Vec<float> x, ptrdiff_t n) {
    memcpy(to, &x, n >= LANES<float> ? sizeof x : n * sizeof(float));
}

// 1 - Phi(a) for a >= 0, as 2^P(a); P(a) is that of the NumPy kernel (mha_numpy/gelu.py).
MHA_INLINE Vec<float> upper_tail(Vec<float> a) {
    constexpr float P[] = {-2.83496283e-06f, 3.93782583e-05f, -1.86182747e-04f, -1.36930893e-04f, 7.06341396e-03f,
                           -5.2496175e-02f,  -0.459208197f,   -1.15110521f,     -1.0f};
    Vec<float> p = broadcast(P[0]);
    unroll<8>([&](auto i) __attribute__((always_inline)) { p = fma(p, a, broadcast(P[i + 1])); });
    return exp2<float>(p);
}
MHA_INLINE Vec<float> magnitude(Vec<float> x) {  // at most 9, beyond which 1 - Phi is 0 beside x; 9 for NaN
    Vec<float> a = select<float>(x < broadcast(0.0f), -x, x), most = broadcast(9.0f);
    return select<float>(a < most, a, most);
}

// x Phi(x) = max(x, 0) - |x| (1 - Phi(|x|)). Source: Hendrycks and Gimpel 2016, section 2.
MHA_INLINE Vec<float> gelu(Vec<float> x) {
    Vec<float> a = magnitude(x);
    return larger(broadcast(0.0f), x) - a * upper_tail(a);
}

// Phi(x) + x phi(x), the slope of GELU.
MHA_INLINE Vec<float> gelu_slope(Vec<float> x) {
    Vec<float> a = magnitude(x), tail = upper_tail(a), zero = broadcast(0.0f);
    Vec<float> bell = a * exp2<float>(a * a * broadcast(-0.5f * LOG2E<float>)) * broadcast(0.39894228f);  // a phi(a)
    Vec<float> slope = select<float>(x < zero, tail - bell, broadcast(1.0f) - tail + bell);
    return select<float>(x == x, slope, x);
}

// Call f(i, n) for a row of ``width`` numbers: n of them, from number i on, fill a vector, and the last call takes the rest.
template <class F> MHA_INLINE void each_vector(ptrdiff_t width, F f) {
    ptrdiff_t i = 0;
    for (; i + LANES<float> <= width; i += LANES<float>) f(i, LANES<float>);
    if (i < width) f(i, width - i);
}

inline void compute_line(const Lines& l, const float* x, const float* a, float* y) {
    auto write = [&](auto f) __attribute__((always_inline)) {
        each_vector(l.width, [&](ptrdiff_t i, ptrdiff_t n) __attribute__((always_inline)) {
            Vec<float> with = a ? load_some(a + i, n) : Vec<float>{};
            Vec<float> bias = l.bias ? load_some(l.bias + i, n) : Vec<float>{};
            store_some(y + i, f(load_some(x + i, n), with) + bias, n);
        });
    };
    auto mean = [&](float middle, auto f) __attribute__((always_inline)) {  // of f(x - middle)
        Vec<float> sums = {}, all = broadcast(middle);
        each_vector(l.width, [&](ptrdiff_t i, ptrdiff_t n) __attribute__((always_inline)) {
            sums += f(load_some(x + i, n, middle) - all);
        });
        return sum<float>(sums) / (float)l.width;
    };
    if (l.what == GELU)
        return write([](Vec<float> v, Vec<float> more) __attribute__((always_inline)) { return gelu(v + more); });
    if (l.what == GELU_VJP)
        return write([](Vec<float> v, Vec<float> d) __attribute__((always_inline)) { return d * gelu_slope(v); });
    float middle = l.what == RMS_NORM ? 0 : mean(0, [](Vec<float> v) __attribute__((always_inline)) { return v; });
    float square = mean(middle, [](Vec<float> v) __attribute__((always_inline)) { return v * v; });
    Vec<float> subtracted = broadcast(middle), factor = broadcast(1 / sqrtf(square + l.eps));
    write([&](Vec<float> v, Vec<float> weight) __attribute__((always_inline)) {
        Vec<float> normed = (v - subtracted) * factor;
        return a ? normed * weight : normed;
    });
}

static void compute_lines(const Lines& l) {
    for (ptrdiff_t i = 0; i < l.rows; ++i)
        compute_line(l, l.x + i * l.x_step, l.a ? l.a + i * l.a_step : nullptr, l.y + i * l.y_step);
}

}}  // namespace mha::MHA_LEVEL
