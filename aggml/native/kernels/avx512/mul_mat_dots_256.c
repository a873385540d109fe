/* mul_mat of q2_K to q6_K and iq4_xs with few columns, AVX-512 VNNI: weights are read once, as they lie, 64 k at a
 * time.
 *
 * A code q of a weight is an unsigned byte; the weight is scale * (q - offset) or scale * q - minimum, with a scale
 * per 16 or 32 of k. The start values of the column, -128 * (sum of 4 elements) in each lane, are shifted to correct
 * for the offset; a minimum is multiplied by them as they are. Used only through lines that need AGK_AVX512_VNNI.
 * Not here: blocks of 32 (mul_mat_dots_32.c), many columns. */
#include "mul_mat_blocks.h"

#include "formats/blocks.h"
#include "kernels/type_facts.h"

enum { K = 256, UNITS = 4 };

typedef enum code_type {
    Q2_K = AGK_Q2_K,
    Q3_K = AGK_Q3_K,
    Q4_K = AGK_Q4_K,
    Q5_K = AGK_Q5_K,
    Q6_K = AGK_Q6_K,
    IQ4_XS = AGK_IQ4_XS
} code_type;

/* 128 >> this is the offset of the codes. */
AGK_INLINE unsigned offset_shift(code_type t)
{
    return t == Q3_K ? 5 : t == Q6_K ? 2 : 0;
}

AGK_INLINE __m128i bytes(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

AGK_INLINE __m512 floats(__m128i signed_bytes, float d)
{
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(signed_bytes)), _mm512_set1_ps(d));
}

AGK_INLINE __m128i low_bits(__m128i q, int shift, int mask)
{
    return _mm_and_si128(_mm_srli_epi16(q, shift), _mm_set1_epi8((char)mask));
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

/* The scales of a block times d, those per 32 in the first 8 lanes, and minimums times m / 128 (in lanes 8 to 15 of
 * both if scales are per 32). */
AGK_INLINE void scales_of(code_type t, const char *block, __m512 *scales, __m512 *minimums)
{
    if (t == Q2_K) {
        const agk_block_q2_k *x = (const agk_block_q2_k *)(const void *)block;
        *scales = floats(low_bits(bytes(x->scales), 0, 15), _cvtsh_ss(x->d));
        *minimums = floats(low_bits(bytes(x->scales), 4, 15), _cvtsh_ss(x->m) * 0x1p-7f);
    } else if (t == Q3_K) {
        const agk_block_q3_k *x = (const agk_block_q3_k *)(const void *)block;
        int32_t last;
        memcpy(&last, x->scales + 8, sizeof last);
        const __m128i first = _mm_loadl_epi64((const __m128i *)(const void *)x->scales);
        const __m128i nibbles = _mm_unpacklo_epi64(low_bits(first, 0, 15), low_bits(first, 4, 15));
        const __m128i pairs = low_bits(_mm_srlv_epi32(_mm_set1_epi32(last), _mm_setr_epi32(0, 2, 4, 6)), 0, 3);
        const __m128i six = _mm_or_si128(nibbles, _mm_slli_epi16(pairs, 4));
        *minimums = *scales = floats(_mm_sub_epi8(six, _mm_set1_epi8(32)), _cvtsh_ss(x->d));
    } else if (t == Q6_K) {
        const agk_block_q6_k *x = (const agk_block_q6_k *)(const void *)block;
        *minimums = *scales = floats(bytes(x->scales), _cvtsh_ss(x->d));
    } else if (t == IQ4_XS) {
        const agk_block_iq4_xs *x = (const agk_block_iq4_xs *)(const void *)block;
        int32_t low;
        memcpy(&low, x->scales_l, sizeof low);
        const __m256i shift_low = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
        const __m256i shift_high = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
        const __m256i nibbles =
            _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(low), shift_low), _mm256_set1_epi32(15));
        const __m256i pairs =
            _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(x->scales_h), shift_high), _mm256_set1_epi32(3));
        const __m256i six = _mm256_or_si256(nibbles, _mm256_slli_epi32(pairs, 4));
        const __m256 s = _mm256_cvtepi32_ps(_mm256_sub_epi32(six, _mm256_set1_epi32(32)));
        *minimums = *scales = _mm512_castps256_ps512(_mm256_mul_ps(s, _mm256_set1_ps(_cvtsh_ss(x->d))));
    } else {
        /* the beginning of a q5_K block has the same layout */
        const agk_block_q4_k *x = (const agk_block_q4_k *)(const void *)block;
        const __m512 d = _mm512_set1_ps(_cvtsh_ss(x->d)), m = _mm512_set1_ps(_cvtsh_ss(x->m) * 0x1p-7f);
        const __m512 all = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(six_bits(x->scales)));
        *minimums = *scales = _mm512_mul_ps(all, _mm512_mask_blend_ps(0xff00, d, m));
    }
}

/* 32 bytes twice, each half shifted by its own count, or rotated if the wanted bits lie lower. */
AGK_INLINE __m512i twice(const uint8_t *p, int first, int second)
{
    const __m512i q = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)p));
    const int64_t a = first & 63, b = second & 63;
    return _mm512_rorv_epi64(q, _mm512_setr_epi64(a, a, a, a, b, b, b, b));
}

AGK_INLINE __m512i masked(__m512i q, int mask)
{
    return _mm512_and_si512(q, _mm512_set1_epi8((char)mask));
}

/* The codes of unit u, 64 k in their order. */
AGK_INLINE __m512i codes(code_type t, const char *block, int u)
{
    const int half = u / 2, part = u % 2;
    if (t == Q2_K) {
        const agk_block_q2_k *x = (const agk_block_q2_k *)(const void *)block;
        return masked(twice(x->qs + 32 * half, 4 * part, 4 * part + 2), 3);
    }
    if (t == Q3_K) {
        const agk_block_q3_k *x = (const agk_block_q3_k *)(const void *)block;
        const __m512i low = masked(twice(x->qs + 32 * half, 4 * part, 4 * part + 2), 3);
        return _mm512_or_si512(low, masked(twice(x->hmask, 2 * u - 2, 2 * u - 1), 4));
    }
    if (t == Q4_K) {
        const agk_block_q4_k *x = (const agk_block_q4_k *)(const void *)block;
        return masked(twice(x->qs + 32 * u, 0, 4), 15);
    }
    if (t == Q5_K) {
        const agk_block_q5_k *x = (const agk_block_q5_k *)(const void *)block;
        return _mm512_or_si512(masked(twice(x->qs + 32 * u, 0, 4), 15), masked(twice(x->qh, 2 * u - 4, 2 * u - 3), 16));
    }
    if (t == Q6_K) {
        const agk_block_q6_k *x = (const agk_block_q6_k *)(const void *)block;
        const __m512i low = masked(_mm512_srli_epi16(_mm512_loadu_si512(x->ql + 64 * half), 4 * part), 15);
        return _mm512_or_si512(low, masked(twice(x->qh + 32 * half, 4 * part - 4, 4 * part - 2), 0x30));
    }
    /* iq4_xs: two times 16 bytes, low nibbles first; levels + 128 */
    const agk_block_iq4_xs *x = (const agk_block_iq4_xs *)(const void *)block;
    const __m512i q = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)(x->qs + 32 * u)));
    const __m512i spread = _mm512_shuffle_i64x2(q, q, 0x50), shift = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
    const __m128i levels = _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, (char)129, (char)141, (char)153, (char)166,
                                         (char)181, (char)197, (char)217, (char)241);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(levels), masked(_mm512_srlv_epi64(spread, shift), 15));
}

/* The scales of unit u, each in the lanes of its k; minimums of scales per 32 are 8 lanes further. */
AGK_INLINE __m512 spread(code_type t, __m512 of_block, int u, bool minimum)
{
    const int a = (agk_facts(t).scale == 16) ? 4 * u : 2 * u + (minimum ? 8 : 0),
              step = (agk_facts(t).scale == 16) ? 1 : 0;
    const int b = a + step, c = (agk_facts(t).scale == 16) ? a + 2 : a + 1, d = c + step;
    return _mm512_permutexvar_ps(_mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d), of_block);
}

AGK_INLINE void unit(code_type t, int R, int N, __m512 acc[2][8], const char *const row[2], const __m512 scales[2],
                     const __m512 minimums[2], const char *b, size_t ldb, int u)
{
    const __m512i halves = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    __m512i w[2];
    __m512 s[2], m[2];
    AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        w[r] = codes(t, row[r], u);
        s[r] = spread(t, scales[r], u, false);
        m[r] = agk_facts(t).minimum ? spread(t, minimums[r], u, true) : s[r];
    }
    AGK_UNROLL for (int n = 0; n < N; ++n)
    {
        const agk_mm_col_q8 *x = (const agk_mm_col_q8 *)(const void *)(b + (size_t)n * ldb) + u;
        const __m128 two = _mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(const void *)x->d));
        const __m512 dx = _mm512_permutexvar_ps(halves, _mm512_castps128_ps512(two));
        const __m512i q = _mm512_loadu_si512(x->q), start = _mm512_loadu_si512(x->start);
        const __m512i from = agk_facts(t).minimum ? _mm512_setzero_si512() : _mm512_srai_epi32(start, offset_shift(t));
        const __m512 sums = _mm512_mul_ps(_mm512_cvtepi32_ps(start), dx);
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const __m512 products = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(from, w[r], q));
            acc[r][n] = _mm512_fmadd_ps(products, _mm512_mul_ps(s[r], dx), acc[r][n]);
            if (agk_facts(t).minimum) acc[r][n] = _mm512_fmadd_ps(sums, m[r], acc[r][n]);
        }
    }
}

AGK_INLINE void panel(code_type t, int R, int N, const agk_mm_block *block, const char *a, const char *b, char *c)
{
    const char *next = agk_mm_ahead(block, a, R), *until = next;
    __m512 acc[2][8], scales[2], minimums[2];
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int n = 0; n < N; ++n) acc[r][n] = _mm512_setzero_ps();
    const char *row[2] = {a, a + (R > 1 ? block->lda : 0)};
    for (int64_t k = 0; k < block->k; k += K, b += UNITS * sizeof(agk_mm_col_q8)) {
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            scales_of(t, row[r], &scales[r], &minimums[r]);
        }
        AGK_UNROLL for (int u = 0; u < UNITS; ++u)
        {
            unit(t, R, N, acc, row, scales, minimums, b, block->ldb, u);
            until += (size_t)R * agk_facts(t).bytes / UNITS;
            next = agk_mm_ask(next, until, &acc[0][0]);
        }
        row[0] += agk_facts(t).bytes;
        row[1] += agk_facts(t).bytes;
    }
    AGK_UNROLL for (int n = 0; n < N; ++n) AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        ((float *)(void *)(c + (size_t)n * block->ldc))[r] = _mm512_reduce_add_ps(acc[r][n]);
    }
}

/* The loops over rows and columns, which call panel() above. */
#include "kernels/mul_mat_dots_loop.h"

/* -- one column of q4_K and q5_K */

enum { BLOCKS_MOST = 64 }; /* of a column */

/* The factors for the scales and minimums of a block: scales of the column, then these times -128 * the sums of 32
 * elements. */
static __m512 of_column(const agk_mm_col_q8 *x)
{
    float to[16];
    for (int b = 0; b < 8; ++b) {
        const int32_t *start = x[b / 2].start + 8 * (b % 2);
        int32_t sum = 0;
        for (int i = 0; i < 8; ++i) sum += start[i];
        to[b] = x[b / 2].d[b % 2];
        to[8 + b] = to[b] * (float)sum;
    }
    return _mm512_loadu_ps(to);
}

/* One product with a block corrects for its minimums and gives its scales, for all rows: 46 vector instructions for
 * 256 k instead of 71, which took longer than reading from memory. */
AGK_INLINE void panel_of_one(code_type t, int R, const agk_mm_block *block, const __m512 *column, const char *a,
                             char *c)
{
    __m512 acc[2], low[2];
    AGK_UNROLL for (int r = 0; r < R; ++r) acc[r] = low[r] = _mm512_setzero_ps();
    const char *row[2] = {a, a + (R > 1 ? block->lda : 0)}, *b = block->b;
    const char *next = agk_mm_ahead(block, a, R), *until = next;
    for (int64_t k = 0; k < block->k; k += K, b += UNITS * sizeof(agk_mm_col_q8), ++column) {
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            __m512 scales, minimums;
            scales_of(t, row[r], &scales, &minimums);
            const __m512 of_block = _mm512_mul_ps(scales, *column);
            low[r] = _mm512_mask_add_ps(low[r], 0xff00, low[r], of_block);
            AGK_UNROLL for (int u = 0; u < UNITS; ++u)
            {
                const agk_mm_col_q8 *x = (const agk_mm_col_q8 *)(const void *)b + u;
                const __m512i s =
                    _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes(t, row[r], u), _mm512_loadu_si512(x->q));
                acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), spread(t, of_block, u, false), acc[r]);
            }
            row[r] += agk_facts(t).bytes;
            until += agk_facts(t).bytes;
            next = agk_mm_ask(next, until, &acc[r]);
        }
    }
    AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        ((float *)(void *)c)[r] = _mm512_reduce_add_ps(_mm512_add_ps(acc[r], low[r]));
    }
}

AGK_INLINE void dot(code_type t, const agk_mm_block *block)
{
    if ((t != Q4_K && t != Q5_K) || block->cols != 1 || block->k > BLOCKS_MOST * K) {
        agk_dot_blocks(t, block);
        return;
    }
    __m512 column[BLOCKS_MOST];
    const agk_mm_col_q8 *x = block->b;
    for (int64_t k = 0; k < block->k; k += K) column[k / K] = of_column(x + k / K * UNITS);
    const char *a = block->a;
    char *c = (char *)block->c;
    for (int64_t rows = block->rows; rows > 0; rows -= 2, a += 2 * block->lda, c += 2 * sizeof(float)) {
        if (rows > 1)
            panel_of_one(t, 2, block, column, a, c);
        else
            panel_of_one(t, 1, block, column, a, c);
    }
}

#define DOT(kernel, t, ...) \
    void agk_mm_dots_##kernel##_avx512(const agk_mm_block *block) \
    { \
        dot(t, block); \
    }
AGK_MM_OF_256(DOT, )
