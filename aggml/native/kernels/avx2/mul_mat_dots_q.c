/* mul_mat of quantized rows with few columns, AVX2: weights are read once and not repacked, 32 elements of k at a
 * time, in tiles of 2 rows x up to 4 columns.
 *
 * A code is an unsigned byte of at most 6 bits, so that the 16-bit sums of two products cannot overflow, or a signed
 * byte from a table. The offset of unsigned codes is removed by the start values of the column: each lane begins with
 * -128 * (sum of its 4 elements), shifted right. For types with minimums the same start values multiply the minimum.
 * Not here: q8_0 (mul_mat_dots.c), many columns (mul_mat.c). */
#include <immintrin.h>

#include "formats/blocks.h"
#include "kernels/type_facts.h"
#include "kernels/inline.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat.h"
#include "formats/quant.h"

#include "mul_mat_dots_one.h"

typedef enum kind {
    Q4_0 = AGK_Q4_0,
    Q4_1 = AGK_Q4_1,
    Q5_0 = AGK_Q5_0,
    Q5_1 = AGK_Q5_1,
    IQ4_NL = AGK_IQ4_NL,
    MXFP4 = AGK_MXFP4,
    Q2_K = AGK_Q2_K,
    Q3_K = AGK_Q3_K,
    Q4_K = AGK_Q4_K,
    Q5_K = AGK_Q5_K,
    Q6_K = AGK_Q6_K,
    IQ4_XS = AGK_IQ4_XS
} kind;

AGK_INLINE int groups_of(kind t) /* of 32 k in a block */
{
    return agk_facts(t).block / 32;
}

AGK_INLINE bool has_table(kind t)
{
    return t == IQ4_NL || t == IQ4_XS || t == MXFP4;
}

/* The codes' offset is 128 >> this number; 0: they have no offset. */
AGK_INLINE int offset_shift(kind t)
{
    return t == Q4_0 ? 4 : t == Q5_0 ? 3 : t == Q3_K ? 5 : t == Q6_K ? 2 : 0;
}

/* --- scales and minimums of a block ---------------------------------------------------------------------------- */

AGK_INLINE float half_at(const void *p)
{
    uint16_t d;
    memcpy(&d, p, sizeof d);
    return _cvtsh_ss(d);
}

AGK_INLINE __m128i low_bits(__m128i q, int shift, int mask)
{
    return _mm_and_si128(_mm_srli_epi16(q, shift), _mm_set1_epi8((char)mask));
}

/* 8 of 16 signed bytes times d. */
AGK_INLINE void put8(float *to, __m128i q, float d)
{
    _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)), _mm256_set1_ps(d)));
}

AGK_INLINE void put16(float *to, __m128i q, float d)
{
    put8(to, q, d);
    put8(to + 8, _mm_srli_si128(q, 8), d);
}

/* Six bits of 8 scales, then of 8 minimums: see kernels/vec/dequant_k.h. */
AGK_INLINE __m128i six_bits(const uint8_t *packed)
{
    const uint32_t six = 0x3f3f3f3f, low = 0x0f0f0f0f, high = 0x30303030;
    uint32_t w[3];
    memcpy(w, packed, sizeof w);
    const uint32_t s = (w[2] & low) | (w[0] >> 2 & high), t = (w[2] >> 4 & low) | (w[1] >> 2 & high);
    return _mm_setr_epi32((int)(w[0] & six), (int)s, (int)(w[1] & six), (int)t);
}

/* Scales times d in the order of k, one or two for each 32; minimums times m / -128. */
AGK_INLINE void scales_of(kind t, const char *block, float scales[16], float minimums[16])
{
    if (t == Q2_K) {
        const agk_block_q2_k *x = (const agk_block_q2_k *)(const void *)block;
        const __m128i q = _mm_loadu_si128((const __m128i *)(const void *)x->scales);
        put16(scales, low_bits(q, 0, 15), half_at(&x->d));
        put16(minimums, low_bits(q, 4, 15), half_at(&x->m) * 0x1p-7f);
    } else if (t == Q3_K) {
        const agk_block_q3_k *x = (const agk_block_q3_k *)(const void *)block;
        int32_t last;
        memcpy(&last, x->scales + 8, sizeof last);
        const __m128i first = _mm_loadl_epi64((const __m128i *)(const void *)x->scales);
        const __m128i nibbles = _mm_unpacklo_epi64(low_bits(first, 0, 15), low_bits(first, 4, 15));
        const __m128i pairs = low_bits(_mm_srlv_epi32(_mm_set1_epi32(last), _mm_setr_epi32(0, 2, 4, 6)), 0, 3);
        const __m128i six = _mm_or_si128(nibbles, _mm_slli_epi16(pairs, 4));
        put16(scales, _mm_sub_epi8(six, _mm_set1_epi8(32)), half_at(&x->d));
    } else if (t == Q6_K) {
        const agk_block_q6_k *x = (const agk_block_q6_k *)(const void *)block;
        put16(scales, _mm_loadu_si128((const __m128i *)(const void *)x->scales), half_at(&x->d));
    } else if (t == Q4_K || t == Q5_K) {
        const agk_block_q4_k *x = (const agk_block_q4_k *)(const void *)block; /* q5_K begins with the same members */
        const __m128i six = six_bits(x->scales);
        put8(scales, six, half_at(&x->d));
        put8(minimums, _mm_srli_si128(six, 8), half_at(&x->m) * 0x1p-7f);
    } else if (t == IQ4_XS) {
        const agk_block_iq4_xs *x = (const agk_block_iq4_xs *)(const void *)block;
        int32_t low;
        memcpy(&low, x->scales_l, sizeof low);
        const __m256i at = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), fifteen = _mm256_set1_epi32(15);
        const __m256i nibbles = _mm256_srlv_epi32(_mm256_set1_epi32(low), _mm256_slli_epi32(at, 2));
        const __m256i pairs = _mm256_srlv_epi32(_mm256_set1_epi32(x->scales_h), _mm256_slli_epi32(at, 1));
        const __m256i high = _mm256_slli_epi32(_mm256_and_si256(pairs, _mm256_set1_epi32(3)), 4);
        const __m256i six = _mm256_or_si256(_mm256_and_si256(nibbles, fifteen), high);
        const __m256 s = _mm256_cvtepi32_ps(_mm256_sub_epi32(six, _mm256_set1_epi32(32)));
        _mm256_storeu_ps(scales, _mm256_mul_ps(s, _mm256_set1_ps(half_at(&x->d))));
    } else {
        scales[0] = t == MXFP4 ? agk_half_of_e8m0((uint8_t)*block) : half_at(block);
        if (agk_facts(t).minimum) minimums[0] = half_at(block + 2) * -0x1p-7f;
    }
}

/* Those of group g, each in the lanes of its k. */
AGK_INLINE __m256 spread(kind t, const float of_block[16], int g)
{
    if (!(agk_facts(t).scale == 16)) return _mm256_set1_ps(of_block[g]);
    return _mm256_insertf128_ps(_mm256_set1_ps(of_block[2 * g]), _mm_set1_ps(of_block[2 * g + 1]), 1);
}

/* --- codes ----------------------------------------------------------------------------------------------------- */

AGK_INLINE __m256i load32(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

/* q[i] >> shift & mask, or << if it is negative */
AGK_INLINE __m256i bits(__m256i q, int shift, int mask)
{
    const __m256i moved = shift < 0 ? _mm256_slli_epi16(q, -shift) : _mm256_srli_epi16(q, shift);
    return _mm256_and_si256(moved, _mm256_set1_epi8((char)mask));
}

/* The low nibbles of 16 bytes, then the high ones. */
AGK_INLINE __m256i nibbles(const void *p)
{
    const __m128i q = _mm_loadu_si128((const __m128i *)p);
    return bits(_mm256_inserti128_si256(_mm256_castsi128_si256(q), _mm_srli_epi16(q, 4), 1), 0, 15);
}

/* 16 in each byte whose bit is set. */
AGK_INLINE __m256i fifth_bits(const char *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    const __m256i bytes = _mm256_shuffle_epi8(
        _mm256_set1_epi32(word), _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    const __m256i one = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, one), one);
    return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

AGK_INLINE __m256i table(kind t, __m256i codes)
{
    const __m128i iq4 = _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    const __m128i fp4 = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t == MXFP4 ? fp4 : iq4), codes);
}

/* Codes of group g in the order of k. */
AGK_INLINE __m256i codes(kind t, const char *block, int g)
{
    const int half = g / 4, part = g % 4;
    if (t == Q2_K) {
        const agk_block_q2_k *x = (const agk_block_q2_k *)(const void *)block;
        return bits(load32(x->qs + 32 * half), 2 * part, 3);
    }
    if (t == Q3_K) {
        const agk_block_q3_k *x = (const agk_block_q3_k *)(const void *)block;
        return _mm256_or_si256(bits(load32(x->qs + 32 * half), 2 * part, 3), bits(load32(x->hmask), g - 2, 4));
    }
    if (t == Q4_K) {
        const agk_block_q4_k *x = (const agk_block_q4_k *)(const void *)block;
        return bits(load32(x->qs + 32 * (g / 2)), 4 * (g % 2), 15);
    }
    if (t == Q5_K) {
        const agk_block_q5_k *x = (const agk_block_q5_k *)(const void *)block;
        const __m256i low = bits(load32(x->qs + 32 * (g / 2)), 4 * (g % 2), 15);
        return _mm256_or_si256(low, bits(load32(x->qh), g - 4, 16));
    }
    if (t == Q6_K) {
        const agk_block_q6_k *x = (const agk_block_q6_k *)(const void *)block;
        const __m256i low = bits(load32(x->ql + 64 * half + 32 * (part % 2)), 4 * (part / 2), 15);
        return _mm256_or_si256(low, bits(load32(x->qh + 32 * half), 2 * part - 4, 0x30));
    }
    if (t == IQ4_XS) return table(t, nibbles(((const agk_block_iq4_xs *)(const void *)block)->qs + 16 * g));
    const size_t at = t == MXFP4 ? 1 : t == Q4_1 ? 4 : t == Q5_0 ? 6 : t == Q5_1 ? 8 : 2;
    const __m256i q = nibbles(block + at);
    if (has_table(t)) return table(t, q);
    return t == Q5_0 || t == Q5_1 ? _mm256_or_si256(q, fifth_bits(block + at - 4)) : q;
}

/* --- products -------------------------------------------------------------------------------------------------- */

/* Sums of 4 products. */
AGK_INLINE __m256i products(kind t, __m256i w, __m256i x)
{
    const __m256i ones = _mm256_set1_epi16(1);
    if (!has_table(t)) return _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), ones);
    /* an element of a column may be -128, an entry of a table may not */
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(w, x)), ones);
}

AGK_INLINE void group(kind t, int R, int N, __m256 acc[2][4], const __m256i w[2], const __m256 s[2], const __m256 m[2],
                      const char *b, size_t ldb, int64_t i)
{
    AGK_UNROLL for (int n = 0; n < N; ++n)
    {
        const agk_mm_col_q8 *col = (const agk_mm_col_q8 *)(const void *)(b + (size_t)n * ldb) + i / 2;
        const __m256 d = _mm256_set1_ps(col->d[i & 1]);
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(col->q + (i & 1) * AGK_MM_BLOCK));
        const __m256i start = _mm256_loadu_si256((const __m256i *)(const void *)(col->start + (i & 1) * 8));
        const __m256 sums = _mm256_mul_ps(_mm256_cvtepi32_ps(start), d);
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            __m256i p = products(t, w[r], x);
            if (offset_shift(t) != 0) p = _mm256_add_epi32(p, _mm256_srai_epi32(start, offset_shift(t)));
            acc[r][n] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(p), _mm256_mul_ps(s[r], d), acc[r][n]);
            if (agk_facts(t).minimum) acc[r][n] = _mm256_fmadd_ps(sums, m[r], acc[r][n]);
        }
    }
}

AGK_INLINE float sum8(__m256 x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

AGK_INLINE void panel(kind t, int R, int N, const agk_mm_block *block, const char *a, const char *b, char *c)
{
    __m256 acc[2][4];
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int n = 0; n < N; ++n) acc[r][n] = _mm256_setzero_ps();
    const char *row[2] = {a, a + (R > 1 ? block->lda : 0)};
    for (int64_t i = 0; i < block->k / AGK_MM_BLOCK; i += groups_of(t)) {
        float scales[2][16], minimums[2][16];
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            for (size_t line = 0; line < agk_facts(t).bytes; line += 64) { /* of the next rows */
                _mm_prefetch(row[r] + (size_t)R * block->lda + line, _MM_HINT_T0);
            }
            scales_of(t, row[r], scales[r], minimums[r]);
        }
        AGK_UNROLL for (int g = 0; g < groups_of(t); ++g)
        {
            __m256i w[2];
            __m256 s[2], m[2];
            AGK_UNROLL for (int r = 0; r < R; ++r)
            {
                w[r] = codes(t, row[r], g);
                s[r] = spread(t, scales[r], g);
                m[r] = agk_facts(t).minimum ? spread(t, minimums[r], g) : s[r];
            }
            group(t, R, N, acc, w, s, m, b, block->ldb, i + g);
        }
        row[0] += agk_facts(t).bytes;
        row[1] += agk_facts(t).bytes;
    }
    AGK_UNROLL for (int n = 0; n < N; ++n) AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        ((float *)(void *)(c + (size_t)n * block->ldc))[r] = sum8(acc[r][n]);
    }
}

/* The loops over rows and columns, which call panel() above. */
#include "kernels/mul_mat_dots_loop.h"

#define DOT(kernel, t, ...) \
    void agk_mm_dots_##kernel##_avx2(const agk_mm_block *block) \
    { \
        if ((t == Q4_K || t == Q5_K) && block->cols == 1 && block->k <= ONE_MOST) \
            one_column_of_256(t == Q5_K, block); \
        else \
            agk_dot_blocks(t, block); \
    }
DOT(q4_0, Q4_0, )
DOT(q4_1, Q4_1, )
DOT(q5_0, Q5_0, )
DOT(q5_1, Q5_1, )
DOT(iq4_nl, IQ4_NL, )
DOT(mxfp4, MXFP4, )
AGK_MM_OF_256(DOT, )
