// Vectors of numbers, written with the extensions that GCC and Clang share.
//
// A file that includes this one is compiled once for each level of processor, in the namespace of the level. MHA_LEVEL is
// one of base, avx2, avx512, avx512_bf16, avx512_amx, dotprod.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define MHA_INLINE inline __attribute__((always_inline))

namespace mha { namespace MHA_LEVEL {

#if defined(__AVX512F__)
constexpr int BYTES = 64, REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int BYTES = 32, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int BYTES = 16, REGISTERS = 32;
#else
constexpr int BYTES = 16, REGISTERS = 16;
#endif

template <class T> struct Traits;
template <> struct Traits<float> { typedef int32_t Int; typedef uint32_t Unsigned; };
template <> struct Traits<double> { typedef int64_t Int; typedef uint64_t Unsigned; };
template <class T> using Int = typename Traits<T>::Int;

template <class T> struct VectorOf { typedef T type __attribute__((vector_size(BYTES))); };
template <class T> using Vec = typename VectorOf<T>::type;    // LANES<T> numbers
template <class T> using Bits = typename VectorOf<Int<T>>::type;  // as many integers, or the outcome of a comparison: 0 or -1
template <class T> using Words = typename VectorOf<typename Traits<T>::Unsigned>::type;  // numbers as they are stored
template <class T> constexpr int LANES = BYTES / sizeof(T);

// Call f(0), f(1), ... with constants, so that arrays indexed by them stay in registers.
template <int N> struct Constant { constexpr operator int() const { return N; } };
template <int N, class F> MHA_INLINE void unroll(F&& f) {
    if constexpr (N > 0) {
        unroll<N - 1>(f);
        f(Constant<N - 1>{});
    }
}

// Clang runs out of sixteen registers where it keeps what a loop reads more than once: it reads vectors from KEPT on each
// time.
#if defined(__clang__) && defined(__x86_64__) && !defined(__AVX512F__)
constexpr int KEPT = 2;
template <class T> MHA_INLINE void forget(const T*& address) { __asm__ volatile("" : "+r"(address)); }
#else
constexpr int KEPT = 3;
template <class T> MHA_INLINE void forget(const T*&) {}
#endif

template <class T> MHA_INLINE Vec<T> load(const T* from) {
    Vec<T> x;
    memcpy(&x, from, sizeof x);
    return x;
}
template <class T> MHA_INLINE void store(T* to, Vec<T> x) { memcpy(to, &x, sizeof x); }

// LANES integers as numbers.
template <class T> MHA_INLINE Vec<T> load(const int8_t* from) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#elif defined(__AVX2__)
    if constexpr (sizeof(T) == 4) return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#endif
    Vec<T> x;
    for (int i = 0; i < LANES<T>; ++i) x[i] = (T)from[i];
    return x;
}

#if defined(__x86_64__)
#if defined(__AVX512F__)
#define MHA_X86(operation) _mm512_##operation
#elif defined(__AVX2__)
#define MHA_X86(operation) _mm256_##operation
#else
#define MHA_X86(operation) _mm_##operation
#endif
MHA_INLINE Vec<float> broadcast(float x) { return MHA_X86(set1_ps)(x); }
MHA_INLINE Vec<double> broadcast(double x) { return MHA_X86(set1_pd)(x); }
MHA_INLINE Vec<float> larger(Vec<float> a, Vec<float> b) { return MHA_X86(max_ps)(a, b); }
MHA_INLINE Vec<double> larger(Vec<double> a, Vec<double> b) { return MHA_X86(max_pd)(a, b); }
#if defined(__FMA__)
MHA_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) { return MHA_X86(fmadd_ps)(a, b, c); }
MHA_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) { return MHA_X86(fmadd_pd)(a, b, c); }
#else
template <class V> MHA_INLINE V fma(V a, V b, V c) { return a * b + c; }  // no such instruction: two roundings
#endif
#elif defined(__aarch64__)
MHA_INLINE Vec<float> broadcast(float x) { return vdupq_n_f32(x); }
MHA_INLINE Vec<double> broadcast(double x) { return vdupq_n_f64(x); }
MHA_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) { return vfmaq_f32(c, a, b); }
MHA_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) { return vfmaq_f64(c, a, b); }
template <class V> MHA_INLINE V larger(V a, V b) { return a > b ? a : b; }
#endif
// larger(a, b) is a > b ? a : b, so it is b where one of them is NaN.

// Pairs of bfloat16 numbers, each in a lane of a float: the first in its lower half.
#if defined(__AVX512BF16__)
constexpr bool HAS_PAIRS = true;
// c + the product of the first numbers + the product of the second ones. Subnormal numbers count as 0.
MHA_INLINE Vec<float> dot(Vec<float> a, Vec<float> b, Vec<float> c) { return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b); }
// To the nearest numbers, ties to even.
MHA_INLINE Vec<float> pair(Vec<float> first, Vec<float> second) {
    const __m512i order = (__m512i)(Bits<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} * 0x10001 + 0x100000);
    return (Vec<float>)_mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}
#else
constexpr bool HAS_PAIRS = false;
template <class V> V dot(V a, V b, V c);
template <class V> V pair(V first, V second);
#endif
MHA_INLINE Vec<float> first_of(Vec<float> pairs) { return (Vec<float>)((Words<float>)pairs << 16); }
MHA_INLINE Vec<float> second_of(Vec<float> pairs) { return (Vec<float>)((Words<float>)pairs & 0xffff0000); }

// Whether any lane is set.
template <class T> MHA_INLINE bool any(Bits<T> x) {
#if defined(__AVX512F__)
    return _mm512_test_epi64_mask((__m512i)x, (__m512i)x) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)x, (__m256i)x);
#else
    int64_t parts[BYTES / 8];
    memcpy(parts, &x, sizeof x);
    return (parts[0] | parts[1]) != 0;
#endif
}

template <class T> MHA_INLINE Vec<T> select(Bits<T> where, Vec<T> yes, Vec<T> no) { return where ? yes : no; }

// A number without sign for each lane, as integers. In one step, GCC 12 would convert bytes one by one.
template <class T, class From> MHA_INLINE Words<T> widen(const From* from) {
    typedef From Narrow __attribute__((vector_size(LANES<T> * sizeof(From))));
    typedef uint16_t Middle __attribute__((vector_size(LANES<T> * 2)));
    Narrow x;
    memcpy(&x, from, sizeof x);
    return __builtin_convertvector(__builtin_convertvector(x, Middle), Words<T>);
}

// Exchange, in each pair of vectors whose numbers differ by H, the upper lanes of the first for the lower lanes of the second.
template <int N, int... I> struct Indices : Indices<N - 1, N - 1, I...> {};
template <int... I> struct Indices<0, I...> {
    template <int H, class V> static MHA_INLINE V lower(V a, V b) {
        return __builtin_shufflevector(a, b, ((I & H) ? (int)sizeof...(I) + I - H : I)...);
    }
    template <int H, class V> static MHA_INLINE V upper(V a, V b) {
        return __builtin_shufflevector(a, b, ((I & H) ? (int)sizeof...(I) + I : I + H)...);
    }
    template <int H, class V> static MHA_INLINE V halves(V a) { return __builtin_shufflevector(a, a, (I ^ H)...); }
};

// Transpose a square of LANES x LANES numbers.
template <class T, int H = LANES<T> / 2> MHA_INLINE void transpose(Vec<T> (&x)[LANES<T>]) {
    if constexpr (H > 0) {
        unroll<LANES<T>>([&](auto i) __attribute__((always_inline)) {
            if constexpr ((i & H) == 0) {
                Vec<T> a = x[i], b = x[i + H];
                x[i] = Indices<LANES<T>>::template lower<H>(a, b);
                x[i + H] = Indices<LANES<T>>::template upper<H>(a, b);
            }
        });
        transpose<T, H / 2>(x);
    }
}

// Lane i of the result is the sum of all lanes of x[i], in a fixed order. x is overwritten.
template <class T, int H = LANES<T> / 2> MHA_INLINE Vec<T> sums(Vec<T> (&x)[LANES<T>]) {
    if constexpr (H > 0) {
        unroll<H>([&](auto i) __attribute__((always_inline)) {
            typedef Indices<LANES<T>> I;
            x[i] = I::template lower<H>(x[i], x[i + H]) + I::template upper<H>(x[i], x[i + H]);
        });
        return sums<T, H / 2>(x);
    } else {
        return x[0];
    }
}

// Combine all lanes by f(a, b), in a fixed order.
template <class T, int H = LANES<T> / 2, class F> MHA_INLINE T combine(Vec<T> x, F f) {
    if constexpr (H == 0)
        return x[0];
    else
        return combine<T, H / 2>(f(x, Indices<LANES<T>>::template halves<H>(x)), f);
}
template <class T> MHA_INLINE T sum(Vec<T> x) {
    return combine<T>(x, [](Vec<T> a, Vec<T> b) __attribute__((always_inline)) { return a + b; });
}
template <class T> MHA_INLINE T largest(Vec<T> x) {
    return combine<T>(x, [](Vec<T> a, Vec<T> b) __attribute__((always_inline)) { return larger(a, b); });
}

}}  // namespace mha::MHA_LEVEL
