// A step of AdamW: each element is read once and written once.
// Defined by compiler options: DTYPE of weights and gradients; WIDE of m and v (double for double, else float); PACK (elements in one
// access).

#include "numbers.cuh"

extern "C" __global__ void adamw(
    const DTYPE* __restrict__ w, const DTYPE* __restrict__ gradient, WIDE* __restrict__ m, WIDE* __restrict__ v,
    DTYPE* __restrict__ out, const WIDE* __restrict__ scale_at, WIDE scale,  // of the gradient: an array (), or null and a number
    WIDE beta_1, WIDE rest_1, WIDE beta_2, WIDE rest_2,                      // rest: 1 - beta
    WIDE correction_1, WIDE correction_2,                                    // 1 - beta^t
    WIDE keep, WIDE rate, WIDE eps, long long packs)
{
    const long long pack = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (pack >= packs) return;
    const WIDE by = scale_at ? *scale_at : scale;
    WIDE x[PACK], g[PACK], m_of[PACK], v_of[PACK];
    load(w + pack * PACK, x);
    load(gradient + pack * PACK, g);
    load(m + pack * PACK, m_of);
    load(v + pack * PACK, v_of);
#pragma unroll
    for (int i = 0; i < PACK; i++) {
        const WIDE scaled = g[i] * by;
        m_of[i] = beta_1 * m_of[i] + rest_1 * scaled;
        v_of[i] = beta_2 * v_of[i] + rest_2 * (scaled * scaled);
        x[i] = keep * x[i] - rate * (m_of[i] / correction_1 / (sqrt(v_of[i] / correction_2) + eps));
    }
    store(m_of, m + pack * PACK);
    store(v_of, v + pack * PACK);
    store(x, out + pack * PACK);
}
