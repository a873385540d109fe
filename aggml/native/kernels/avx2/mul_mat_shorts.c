/* mul_mat of quantized rows and many columns in byte lanes, AVX2 (mul_mat_shorts.h): tiles of 4 rows x 16 columns,
 * packing of columns, and the store.
 *
 * 32 products take 2.1 instructions with codes of 4 bits, 2.4, 2.5 and 3 with 5, 6 and 7 bits, 4.5 with 8 bits. In
 * f32 they take 4, which only two of the three vector pipes execute. Not here: rows (mul_mat_shorts_rows.c), few
 * columns (mul_mat_dots_q.c). */
#define SHORT_VNNI 0
#include "kernels/vec/mul_mat_shorts.h"
#include "math.h"
#include "table/kernel_types.h"

/* 32 k of 8 columns, `part` of the two in each agk_mm_col_q8, to half w of a unit. */
AGK_INLINE void pack_half(bool halves, bool wide, const char *b, size_t ldb, int64_t cols, int part, int w,
                          agk_short_unit *y)
{
    vf r[8];
    float d[8] = {0};
    AGK_UNROLL for (int j = 0; j < 8; ++j)
    {
        r[j] = v_zero();
        if (j < cols) {
            const agk_mm_col_q8 *x = (const agk_mm_col_q8 *)(const void *)(b + (size_t)j * ldb);
            r[j] = v_load((const float *)(const void *)(x->q + 32 * part));
            d[j] = x->d[part];
        }
    }
    v_transpose(r);
    __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    const __m256i ones = _mm256_set1_epi8(1), sign = _mm256_set1_epi8(-128);
    AGK_UNROLL for (int v = 0; v < 8; ++v)
    {
        const __m256i q = _mm256_castps_si256(r[v]);
        const __m256i fours = _mm256_madd_epi16(_mm256_maddubs_epi16(ones, q), _mm256_set1_epi16(1));
        sum[v / 4] = _mm256_add_epi32(sum[v / 4], fours);
        _mm256_storeu_si256((__m256i *)(void *)y->q[v][8 * w], _mm256_xor_si256(q, sign));
    }
    if (!halves) sum[0] = _mm256_add_epi32(sum[0], sum[1]);
    v_store(y->d + 8 * w, v_load(d));
    AGK_UNROLL for (int h = 0; h < 2; ++h)
    {
        const vf s = _mm256_cvtepi32_ps(sum[h]);
        v_store(y->sum[h] + 8 * w, wide ? s : _mm256_mul_ps(s, v_load(d)));
    }
}

void agk_mm_shorts_columns_avx2(bool halves, bool wide, int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    agk_short_unit *y = out;
    for (int64_t i = 0; i < k / AGK_MM_BLOCK; ++i, ++y) {
        const char *x = (const char *)b + (size_t)(i / 2) * sizeof(agk_mm_col_q8);
        pack_half(halves, wide, x, ldb, cols, (int)(i & 1), 0, y);
        pack_half(halves, wide, x + 8 * ldb, ldb, cols - 8, (int)(i & 1), 1, y);
    }
}

#define AGK_KIND(fours, halves, minimum, wide) \
    ((fours) * 8 + ((wide) ? 4 : 0) + ((halves) ? 2 : 0) + ((minimum) ? 1 : 0))
#define AGK_CASE(fours, halves, minimum, wide) \
    case AGK_KIND(fours, halves, minimum, wide): all_units(fours, halves, minimum, wide, p); break;

void agk_mm_shorts_product_avx2(const agk_mm_panel *p)
{
    switch (AGK_KIND(p->fours, p->halves, p->minimum, p->wide)) {
        AGK_CASE(8, false, false, false) /* q4_0, q1_0, q2_0 */
        AGK_CASE(8, false, true, false)  /* q4_1 */
        AGK_CASE(4, false, false, false) /* q5_0, mxfp4 */
        AGK_CASE(4, false, true, false)  /* q5_1 */
        AGK_CASE(4, true, false, false)  /* nvfp4 */
        AGK_CASE(0, false, false, false) /* q8_0, iq4_nl */
        AGK_CASE(8, false, false, true)  /* tq1_0, tq2_0 */
        AGK_CASE(8, false, true, true)   /* q4_K */
        AGK_CASE(4, true, true, true)    /* q2_K */
        AGK_CASE(4, true, false, true)   /* q3_K, iq1_m */
        AGK_CASE(4, false, true, true)   /* q5_K */
        AGK_CASE(4, false, false, true)  /* iq3_s, iq1_s */
        AGK_CASE(2, true, false, true)   /* q6_K */
        AGK_CASE(1, false, false, true)  /* iq2_xxs, iq3_xxs */
        AGK_CASE(1, true, false, true)   /* iq2_xs, iq2_s */
        AGK_CASE(0, false, false, true)  /* iq4_xs */
    default: break;
    }
}
