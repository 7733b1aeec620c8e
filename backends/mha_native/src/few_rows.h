// A linear map of few rows, as in decoding: all time goes into reading the weight once, so it is computed with where it lies.
//
// A number of y is added up in the same order whatever the number of rows is.
#pragma once
#include "convert.h"

namespace mha { namespace MHA_LEVEL {

template <class W> struct FewRows {
    static constexpr ptrdiff_t OUTPUTS = 512;                        // in a block, whose sums stay in the first cache
    static constexpr int R = REGISTERS / 8, J = 4, SIZE = sizeof(W);  // rows and outputs, or inputs, at a time
    static constexpr ptrdiff_t NUMBERS = BYTES / SIZE;               // of the weight in a vector

    const FewRowsMap& m;
    const ptrdiff_t width;  // of rows of x in scratch: a multiple of NUMBERS
    float *x, *sums;

    static ptrdiff_t up(ptrdiff_t n) { return (n + NUMBERS - 1) / NUMBERS * NUMBERS; }
    static size_t scratch_size(const FewRowsMap& m) { return m.rows * (up(m.inputs) + OUTPUTS) * sizeof(float); }

    FewRows(const FewRowsMap& map, char* scratch) : m(map), width(up(map.inputs)) {
        x = (float*)scratch, sums = x + m.rows * width;
        memset(x, 0, m.rows * width * sizeof(float));
        for (ptrdiff_t i = 0; i < m.rows; ++i) read_row(m.x + i * m.x_step, x + i * width);
    }

    // Read a row of x: numbers or, where ``dot`` multiplies by pairs, pairs, or the first and the second numbers of a vector's.
    void read_row(const char* from, float* to) {
        if (SIZE == 4 || !m.by_output) return read<float>(kind(), from, SIZE, to, m.inputs);
        if (HAS_PAIRS) return (void)memcpy(to, from, m.inputs * SIZE);
        for (ptrdiff_t k = 0; k < m.inputs; ++k)
            read<float>(kind(), from + k * SIZE, SIZE, to + k / NUMBERS * NUMBERS + k % 2 * LANES<float> + k % NUMBERS / 2, 1);
    }

    static constexpr Kind kind() { return SIZE == 2 ? BFLOAT16 : FLOAT32; }

    // Up to LANES neighbouring numbers of the weight; the other lanes are 0.
    static MHA_INLINE Vec<float> weights(const char* from, ptrdiff_t n) {
        if (n < LANES<float>) {
            float rest[LANES<float>] = {};
            read<float>(kind(), from, SIZE, rest, n);
            return load(rest);
        }
        if constexpr (SIZE == 2) return (Vec<float>)(widen<float>((const uint16_t*)from) << 16);
        return load((const float*)from);
    }

    // Add the products of a vector of the weight, of numbers or pairs, and as many numbers of a row from number k on.
    static MHA_INLINE Vec<float> add_products(Vec<float> w, const float* row, ptrdiff_t k, Vec<float> sums) {
        if constexpr (SIZE == 4) return fma(load(row + k), w, sums);
        if constexpr (HAS_PAIRS) return MHA_LEVEL::dot(load(row + k / 2), w, sums);
        return fma(load(row + k + LANES<float>), second_of(w), fma(load(row + k), first_of(w), sums));
    }

    // Begin to read what is needed after the next few thousand numbers: processors do not foresee so many short runs.
    static MHA_INLINE void ahead(const char* place) { __builtin_prefetch(place); }

    // Write the sums of N rows from row i on, for C outputs whose weights begin at ``from``.
    template <int N, int C> MHA_INLINE void dot(ptrdiff_t i, const char* from, float* to) {
        Vec<float> c[N][C] = {};
        auto add = [&](ptrdiff_t k, ptrdiff_t n) __attribute__((always_inline)) {
            unroll<C>([&](auto j) __attribute__((always_inline)) {
                const char* place = from + j * m.w_step + k * SIZE;
                float rest[LANES<float>] = {};
                if (n < NUMBERS) memcpy(rest, place, n * SIZE);
                Vec<float> w = load(n < NUMBERS ? rest : (const float*)place);
                if (i == 0) ahead(place + C * m.w_step);
                unroll<N>([&](auto r) __attribute__((always_inline)) {
                    c[r][j] = add_products(w, x + (i + r) * width, k, c[r][j]);
                });
            });
        };
        ptrdiff_t k = 0;
        for (; k + NUMBERS <= m.inputs; k += NUMBERS) add(k, NUMBERS);
        if (k < m.inputs) add(k, m.inputs - k);
        for (int r = 0; r < N; ++r)
            for (int j = 0; j < C; ++j) to[r * OUTPUTS + j] = sum<float>(c[r][j]);
    }

    // Add what C inputs from k on give to the sums of N rows, for n outputs.
    template <int N, int C> MHA_INLINE void add_inputs(ptrdiff_t i, ptrdiff_t k, const char* from, float* to, ptrdiff_t n) {
        for (ptrdiff_t e = 0; e < n; e += LANES<float>) {
            Vec<float> w[C];
            unroll<C>([&](auto j) __attribute__((always_inline)) {
                const char* place = from + j * m.w_step + e * SIZE;
                w[j] = weights(place, n - e);
                if (i == 0) ahead(place + C * m.w_step);
            });
            unroll<N>([&](auto r) __attribute__((always_inline)) {
                Vec<float> c = load(to + r * OUTPUTS + e);
                const float* factors = x + (i + r) * width + k;
                unroll<C>([&](auto j) __attribute__((always_inline)) { c = fma(broadcast(factors[j]), w[j], c); });
                store(to + r * OUTPUTS + e, c);
            });
        }
    }

    // Call f for all rows, R at a time, while the numbers of the weight that it reads are in the first cache.
    template <class F> MHA_INLINE void each_rows(F f) {
        ptrdiff_t i = 0;
        for (; i + R <= m.rows; i += R) f(Constant<R>{}, i);
        for (; R > 2 && i + 2 <= m.rows; i += 2) f(Constant<2>{}, i);
        for (; i < m.rows; ++i) f(Constant<1>{}, i);
    }

    // Write the sums of all rows, for outputs whose weights lie together.
    template <int C> void outputs(const char* from, float* to) {
        each_rows([&](auto n, ptrdiff_t i) { dot<n, C>(i, from, to + i * OUTPUTS); });
    }

    // Add what C inputs from k on give to the sums of all rows, for n outputs.
    template <int C> void inputs(ptrdiff_t k, const char* from, ptrdiff_t n) {
        each_rows([&](auto rows, ptrdiff_t i) { add_inputs<rows, C>(i, k, from, sums + i * OUTPUTS, n); });
    }

    // Write the sums of all rows, for n outputs from ``first`` on.
    void compute_sums(ptrdiff_t first, ptrdiff_t n) {
        const char* from = m.w + first * (m.by_output ? m.w_step : SIZE);
        ptrdiff_t at = 0;
        if (m.by_output) {
            for (; at + J <= n; at += J) outputs<J>(from + at * m.w_step, sums + at);
            for (; at < n; ++at) outputs<1>(from + at * m.w_step, sums + at);
        } else {
            memset(sums, 0, m.rows * OUTPUTS * sizeof(float));
            for (; at + J <= m.inputs; at += J) inputs<J>(at, from + at * m.w_step, n);
            for (; at < m.inputs; ++at) inputs<1>(at, from + at * m.w_step, n);
        }
    }

    void compute(ptrdiff_t first, ptrdiff_t end) {
        for (; first < end; first += OUTPUTS) {
            const ptrdiff_t n = end - first < OUTPUTS ? end - first : OUTPUTS;
            float b[OUTPUTS];
            if (m.b) read<float>(kind(), m.b + first * SIZE, SIZE, b, n);
            compute_sums(first, n);
            for (ptrdiff_t i = 0; i < m.rows; ++i) {
                float* row = sums + i * OUTPUTS;
                for (ptrdiff_t j = 0; m.b && j < n; ++j) row[j] += b[j];
                write<float>(kind(), m.y + i * m.y_step + first * SIZE, row, n);
            }
        }
    }
};

static size_t few_rows_scratch(const FewRowsMap& m) { return FewRows<uint16_t>::scratch_size(m); }  // the larger
static void few_rows_block(const FewRowsMap& m, ptrdiff_t first, ptrdiff_t end, char* scratch) {
    m.half ? FewRows<uint16_t>(m, scratch).compute(first, end) : FewRows<float>(m, scratch).compute(first, end);
}

}}  // namespace mha::MHA_LEVEL
