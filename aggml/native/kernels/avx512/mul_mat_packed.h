/* Products of packed weights with 1 to 8 columns, AVX-512 VNNI: the template for types with blocks of 32 and of 256.
 *
 * 32 k of 16 rows are 8 vectors of codes, unpacked once for all columns. Each column then takes 8 dot products with
 * broadcasts of 4 k, one conversion and one product with the scales (two where there is a scale per 16). Weights are
 * a single stream. A file includes this and names its types; used only through lines that need AGK_AVX512_VNNI. */
#ifndef AGK_AVX512_PACKED_H
#define AGK_AVX512_PACKED_H

#include "mul_mat_packed_codes.h"

/* columns up to which two groups are multiplied together; the sums of more columns would leave no registers */
enum { TWO_GROUPS = 4 };

/* A sub-block, 32 k, of N columns that lie at x. */
AGK_INLINE void sub_block(code_type t, int N, const char *block, int64_t half, int part, __m512 d, __m512 m,
                          const char *x, __m512 acc[AGK_PACKED_COLUMNS])
{
    __m512i w[8];
    __m512 scale[2], minimum[2];
    codes(t, block + data_at(t), half, part, w);
    scales_of(t, block, 4 * half + part, d, m, scale, minimum);
    AGK_UNROLL for (int n = 0; n < N; ++n)
    {
        const char *q = x + 12 * N + 32 * n;
        const __m512 dx = one(x + 4 * n);
        if (!scale_per_16(t)) {
            __m512i s = has_minimum(t) ? _mm512_setzero_si512() : four(x + 4 * (N + n));
            AGK_UNROLL for (int v = 0; v < 8; ++v) s = _mm512_dpbusd_epi32(s, w[v], four(q + 4 * v));
            acc[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), _mm512_mul_ps(scale[0], dx), acc[n]);
            if (has_minimum(t)) acc[n] = _mm512_fmadd_ps(minimum[0], one(x + 4 * (N + n)), acc[n]);
        } else {
            AGK_UNROLL for (int h = 0; h < 2; ++h)
            {
                const char *sum = x + 4 * ((h + 1) * N + n);
                __m512i s = has_minimum(t) ? _mm512_setzero_si512() : four(sum);
                AGK_UNROLL for (int v = 4 * h; v < 4 * h + 4; ++v) s = _mm512_dpbusd_epi32(s, w[v], four(q + 4 * v));
                acc[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), _mm512_mul_ps(scale[h], dx), acc[n]);
                if (has_minimum(t)) acc[n] = _mm512_fmadd_ps(minimum[h], one(sum), acc[n]);
            }
        }
    }
}

/* Multiplies G groups from `a` on, side by side: two streams from memory keep more lines in flight than one, and the
 * columns are read once for both groups. rows: of the last group. */
AGK_INLINE void group(code_type t, int N, int G, const agk_mm_block *b, const char *a, __mmask16 rows, float *c)
{
    const size_t bytes_of_block = data_at(t) + 64 * vectors(t), unit = (size_t)N * AGK_PACKED_COLUMN;
    const int parts = of_256(t) ? 4 : 1, halves_of_block = of_256(t) ? 2 : 1;
    const size_t ahead = bytes_of_block / (size_t)(parts * halves_of_block);
    const size_t far = AGK_PACKED_AHEAD;
    const char *x = b->b, *end = a + b->lda;
    __m512 acc[2][AGK_PACKED_COLUMNS];
    AGK_UNROLL for (int g = 0; g < G; ++g)
    {
        AGK_UNROLL for (int n = 0; n < N; ++n) acc[g][n] = _mm512_setzero_ps();
    }
    for (int64_t k = 0; k < b->k; k += of_256(t) ? 256 : 32, a += bytes_of_block) {
        __m512 d[2], m[2];
        AGK_UNROLL for (int g = 0; g < G; ++g)
        {
            scales_of_block(t, a + (size_t)g * b->lda, &d[g], &m[g]);
        }
        for (int64_t half = 0; half < halves_of_block; ++half) {
            AGK_UNROLL for (int part = 0; part < parts; ++part, x += unit)
            {
                const char *next = a + far + (size_t)(half * parts + part) * ahead;
                AGK_UNROLL for (int g = 0; g < G; ++g)
                {
                    if (g + 1 < G && next >= end) next += 2 * b->lda; /* the second of the two groups that follow */
                    AGK_UNROLL for (size_t line = 0; line < ahead; line += 64)
                    {
                        if (t ==
                            /* K of 4096 and more: 92 % of the bandwidth into L2, 84 into L1; others gain 3 into L1 */
                            Q8_0)
                            _mm_prefetch(next + line, _MM_HINT_T1);
                        else
                            _mm_prefetch(next + line, _MM_HINT_T0);
                    }
                    sub_block(t, N, a + (size_t)g * b->lda, half, part, d[g], m[g], x, acc[g]);
                    next = a + b->lda + far + (size_t)(half * parts + part) * ahead;
                }
            }
        }
    }
    AGK_UNROLL for (int g = 0; g < G; ++g)
    {
        const __mmask16 mask = g + 1 < G ? (__mmask16)0xffff : rows;
        AGK_UNROLL for (int n = 0; n < N; ++n)
        {
            _mm512_mask_storeu_ps((char *)(c + 16 * g) + (size_t)n * b->ldc, mask, acc[g][n]);
        }
    }
}

AGK_INLINE void groups(code_type t, int N, const agk_mm_block *b)
{
    const char *a = b->a;
    int64_t row = 0;
    if (N <= TWO_GROUPS) {
        for (; row + 16 < b->rows; row += 32, a += 2 * b->lda) {
            group(t, N, 2, b, a, rows_of_group(b->rows - row - 16), b->c + row);
        }
    }
    for (; row < b->rows; row += 16, a += b->lda) {
        group(t, N, 1, b, a, rows_of_group(b->rows - row), b->c + row);
    }
}

#define AGK_PACKED(name, t, ...) AGK_FOR_COLUMNS(agk_mm_packed_##name##_avx512, t)

#endif
