/* pairs, AVX-512 BF16: columns and rows as bf16 terms, two k in a lane, multiplied by vdpbf16ps.
 *
 * Not here: the loop (mul_mat_panels.h), tiles (kernels/amx/mul_mat_tiles.c). */
#include "mul_mat_panels.h"

AGK_INLINE __mmask16 load_split(int terms, int64_t left, const float *x, __m512i out[3])
{
    const uint32_t mask = left < 32 ? (1u << left) - 1 : ~0u;
    return split(terms, _mm512_maskz_loadu_ps((__mmask16)mask, x),
                 _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), x + 16), out);
}

AGK_INLINE bool cols(int terms, int64_t k, int64_t n, const char *b, size_t ldb, char *out)
{
    __mmask16 bad = 0;
    for (int64_t i = 0; i < k; i += 32, out += terms * TILE) {
        for (int64_t j = 0; j < 16; ++j) {
            __m512i t[3] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
            if (j < n) {
                const float *x = (const float *)(const void *)(b + (size_t)j * ldb) + i;
                _mm_prefetch((const char *)x + 256, _MM_HINT_T0);
                _mm_prefetch((const char *)x + 320, _MM_HINT_T0);
                bad |= load_split(terms, k - i, x, t);
            }
            AGK_UNROLL for (int u = 0; u < terms; ++u) _mm512_store_si512(out + u * TILE + j * 64, t[u]);
        }
        for (int u = 0; u < terms; ++u) {
            __m512i r[16];
            AGK_UNROLL for (int j = 0; j < 16; ++j) r[j] = _mm512_load_si512(out + u * TILE + j * 64);
            agk_transpose16(r);
            AGK_UNROLL for (int j = 0; j < 16; ++j) _mm512_store_si512(out + u * TILE + j * 64, r[j]);
        }
    }
    return bad == 0;
}

bool agk_mm_pairs_columns_avx512(int terms, int64_t k, int64_t n, const void *b, size_t ldb, void *out)
{
    return terms == 1   ? cols(1, k, n, b, ldb, out)
           : terms == 2 ? cols(2, k, n, b, ldb, out)
                        : cols(3, k, n, b, ldb, out);
}

AGK_INLINE bool row(int terms, int64_t k, const float *x, char *out)
{
    __mmask16 bad = 0;
    for (int64_t i = 0; i < k; i += 32, out += terms * PAIR) {
        __m512i t[3];
        bad |= load_split(terms, k - i, x + i, t);
        AGK_UNROLL for (int u = 0; u < terms; ++u) _mm512_store_si512(out + u * PAIR, t[u]);
    }
    return bad == 0;
}

bool agk_mm_pairs_rows_avx512(int terms, int64_t k, const float *x, void *out)
{
    return terms == 1 ? row(1, k, x, out) : terms == 2 ? row(2, k, x, out) : row(3, k, x, out);
}

void agk_mm_pairs_rows_bf16_avx512(const void *src, void *out, int64_t k)
{
    const char *x = src;
    char *y = out;
    for (; k >= 32; k -= 32, x += 64, y += PAIR) _mm512_store_si512(y, _mm512_loadu_si512(x));
    if (k > 0) _mm512_store_si512(y, _mm512_maskz_loadu_epi16((1u << k) - 1, x));
}

void agk_mm_pairs_product_avx512(const agk_mm_panel *p)
{
    const int64_t steps = p->k / AGK_PANEL_K, terms = p->terms;
    if (terms == 1) {
        all_units(true, p, steps, p->a, p->b, p->first);
        return;
    }
    bool first = p->first; /* never used in practice, since f32 lanes are faster */
    for (int64_t i = 0; i < steps * terms * terms; ++i) {
        const int64_t step = i / terms / terms, t = i / terms % terms, u = i % terms;
        if (t + u >= terms) continue;
        all_units(true, p, 1, p->a + (step * terms + t) * PAIR, p->b + (step * terms + u) * TILE, first);
        first = false;
    }
}
