// 2^x, e^x and tanh x of vectors.
#pragma once
#include "simd.h"

namespace mha { namespace MHA_LEVEL {

// 2^f - 1 = f q(f) for -1/2 <= f <= 1/2. tools/coefficients.py computes the coefficients, the highest power first.
template <class T> struct Exponential;
template <> struct Exponential<float> {  // relative error 2.6e-9, before rounding
    static constexpr int DEGREE = 6, FRACTION_BITS = 23;
    static constexpr float LEAST = -125, ROUND = 0x1.8p23f;
    static constexpr float LN2_HIGH = 0x1.62e4p-1f, LN2_LOW = 0x1.7f7d1cp-20f;  // their sum is ln 2; n LN2_HIGH is exact
    static constexpr float COEFFICIENTS[] = {0x1.470b4a7656448p-13f, 0x1.5f7276d809020p-10f, 0x1.3b270e6417bb2p-7f,
                                             0x1.c6ae72dfc2656p-5f,  0x1.ebfbe2c540d82p-3f,  0x1.62e4311733cb7p-1f};
};
template <> struct Exponential<double> {  // relative error 1.8e-17
    static constexpr int DEGREE = 11, FRACTION_BITS = 52;
    static constexpr double LEAST = -1021, ROUND = 0x1.8p52;
    static constexpr double LN2_HIGH = 0x1.62e42feep-1, LN2_LOW = 0x1.a39ef35793c76p-33;
    static constexpr double COEFFICIENTS[] = {0x1.c0638527edf34p-32, 0x1.e605f979c7a5dp-28, 0x1.b54167a0b9061p-24,
                                              0x1.62bfd49ed0adfp-20, 0x1.ffcbee3b0af8cp-17, 0x1.4309130961163p-13,
                                              0x1.5d87fe7bbbe07p-10, 0x1.3b2ab6fba1e1cp-7,  0x1.c6b08d7048f31p-5,
                                              0x1.ebfbdff82c598p-3,  0x1.62e42fefa39f3p-1};
};

template <class T> constexpr T LOG2E = (T)1.4426950408889634074;
template <class T> constexpr T most_of() { return sizeof(T) == 8 ? (T)0x1.fffffffffffffp1023 : (T)0x1.fffffep127f; }

// q(f), see above.
template <class T> MHA_INLINE Vec<T> polynomial(Vec<T> f) {
    typedef Exponential<T> E;
    Vec<T> q = broadcast(E::COEFFICIENTS[0]);
    unroll<E::DEGREE - 1>([&](auto at) __attribute__((always_inline)) { q = fma(q, f, broadcast(E::COEFFICIENTS[at + 1])); });
    return q;
}

// y times 2^n, for n in the last bits of ``shifted``.
template <class T> MHA_INLINE Vec<T> scaled(Vec<T> y, Vec<T> shifted) {
    return (Vec<T>)((Words<T>)y + ((Words<T>)shifted << Exponential<T>::FRACTION_BITS));
}

// The nearest integer, for |x| below 2^22 in float, 2^51 in double; far beyond that x itself.
template <class T> MHA_INLINE Vec<T> round(Vec<T> x) {
    return x + broadcast(Exponential<T>::ROUND) - broadcast(Exponential<T>::ROUND);
}

// 2^x for x < 126. 0 for x below LEAST, so that no weight is denormal. NaN for NaN.
template <class T> MHA_INLINE Vec<T> exp2(Vec<T> x) {
    typedef Exponential<T> E;
    Vec<T> shifted = x + broadcast(E::ROUND);  // x = n + f, with n in the last bits
    Vec<T> f = x - (shifted - broadcast(E::ROUND));
    Vec<T> y = scaled<T>(fma(polynomial<T>(f), f, broadcast((T)1)), shifted);
    return select<T>(x >= broadcast(E::LEAST), y, larger(broadcast((T)0), x));  // else 0, or NaN
}

// e^x, likewise: x log2 e would be rounded in proportion to x, so n ln 2 is subtracted in two parts. Source: Cody and Waite
// 1980.
template <class T> MHA_INLINE Vec<T> exp(Vec<T> x) {
    typedef Exponential<T> E;
    Vec<T> shifted = fma(x, broadcast(LOG2E<T>), broadcast(E::ROUND)), n = shifted - broadcast(E::ROUND);
    Vec<T> rest = fma(n, broadcast(-E::LN2_LOW), fma(n, broadcast(-E::LN2_HIGH), x)), f = rest * broadcast(LOG2E<T>);
    Vec<T> y = scaled<T>(fma(polynomial<T>(f), f, broadcast((T)1)), shifted);
    return select<T>(x >= broadcast(E::LEAST * (T)0.69), y, larger(broadcast((T)0), x));
}

// tanh x = -e / (2 + e), with e = 2^(-2 |x| log2 e) - 1, and the sign of x. e is computed as 2^n f q(f) + (2^n - 1), so
// that the relative error stays small near 0.
template <class T> MHA_INLINE Vec<T> tanh(Vec<T> x) {
    typedef Exponential<T> E;
    Vec<T> magnitude = select<T>(x < broadcast((T)0), -x, x);
    Vec<T> y = larger(broadcast(E::LEAST), magnitude * broadcast(-2 * LOG2E<T>));  // tanh is 1 long before; NaN stays
    Vec<T> shifted = y + broadcast(E::ROUND), f = y - (shifted - broadcast(E::ROUND));
    Vec<T> power = scaled<T>(broadcast((T)1), shifted);
    Vec<T> e = fma(power, polynomial<T>(f) * f, power - broadcast((T)1));
    Vec<T> t = -e / (broadcast((T)2) + e);
    return select<T>(x < broadcast((T)0), -t, t);
}

}}  // namespace mha::MHA_LEVEL
