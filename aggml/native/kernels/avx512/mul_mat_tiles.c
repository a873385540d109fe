/* Packing for products on matrix tiles (mul_mat_panels.h): columns, which are converted, and rows of bf16, which are
 * transposed.
 *
 * Rows of f32 are packed like columns in lanes (mm_pairs_columns). Not here: the products
 * (kernels/amx/mul_mat_tiles.c). */
#include "kernels/mul_mat_panels.h"
#include "mul_mat_terms.h"

AGK_INLINE bool cols(int terms, int64_t k, int64_t n, const char *b, size_t ldb, char *out)
{
    __mmask16 bad = 0;
    const size_t unit = agk_terms_unit_bytes(terms, k);
    if (n < 16) memset(out, 0, unit);
    for (int64_t i = 0; i < k;
         /* lines are stored in the order of memory; column by column takes 1.3 times as long */
         i += 32,
                 out += terms * TILE) {
        const uint32_t mask = k - i >= 32 ? ~0u : (1u << (k - i)) - 1;
        for (int64_t j = 0; j < n; ++j) {
            const float *x = (const float *)(const void *)(b + (size_t)j * ldb) + i;
            _mm_prefetch((const char *)x + 256, _MM_HINT_T0);
            _mm_prefetch((const char *)x + 320, _MM_HINT_T0);
            __m512i t[3];
            bad |= split(terms, _mm512_maskz_loadu_ps((__mmask16)mask, x),
                         _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), x + 16), t);
            AGK_UNROLL for (int u = 0; u < terms; ++u) _mm512_store_si512(out + u * TILE + 64 * j, t[u]);
        }
    }
    return bad == 0;
}

bool agk_mm_tiles_columns_avx512(int terms, int64_t k, int64_t n, const void *b, size_t ldb, void *out)
{
    return terms == 1   ? cols(1, k, n, b, ldb, out)
           : terms == 2 ? cols(2, k, n, b, ldb, out)
                        : cols(3, k, n, b, ldb, out);
}

void agk_mm_tiles_rows_bf16_avx512(int64_t k, int64_t n, const void *a, size_t lda, void *out)
{
    char *y = out;
    for (int64_t i = 0; i < k; i += 32, y += TILE) {
        const __mmask32 mask = k - i >= 32 ? 0xffffffffu : (1u << (k - i)) - 1;
        __m512i r[16];
        AGK_UNROLL for (int j = 0; j < 16; ++j)
        {
            r[j] = _mm512_setzero_si512();
            if (j < n) r[j] = _mm512_maskz_loadu_epi16(mask, (const char *)a + (size_t)j * lda + 2 * i);
        }
        agk_transpose16(r);
        AGK_UNROLL for (int j = 0; j < 16; ++j) _mm512_store_si512(y + 64 * j, r[j]);
    }
}
