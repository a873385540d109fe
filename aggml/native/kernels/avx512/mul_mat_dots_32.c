/* mul_mat of types with blocks of 32 and few columns, AVX-512 VNNI: weights are read once, as they lie, 64 k at a time.
 *
 * Weights are made unsigned: q8_0 and the tables of iq4_nl and mxfp4 by adding 128; for other types the codes are
 * unsigned already, with an offset that is a part of 128. The start values of the column, -128 * (sum of 4
 * elements), correct for that; for q4_1 and q5_1 they multiply the minimum. Used only through lines that need
 * AGK_AVX512_VNNI. Not here: blocks of 256 (mul_mat_dots_256.c), many columns (mul_mat_blocks_q8.c). */
#include "mul_mat_blocks.h"

#include "formats/quant.h"
#include "kernels/type_facts.h"

typedef enum code_type {
    Q8_0 = AGK_Q8_0,
    Q4_0 = AGK_Q4_0,
    Q4_1 = AGK_Q4_1,
    Q5_0 = AGK_Q5_0,
    Q5_1 = AGK_Q5_1,
    IQ4_NL = AGK_IQ4_NL,
    MXFP4 = AGK_MXFP4
} code_type;

AGK_INLINE bool has_fifth_bit(code_type t)
{
    return t == Q5_0 || t == Q5_1;
}

/* 128 >> this is the offset of the codes. */
AGK_INLINE unsigned offset_shift(code_type t)
{
    return t == Q4_0 ? 4 : t == Q5_0 ? 3 : 0;
}

/* The codes come after the scale, the minimum and the fifth bits. */
AGK_INLINE size_t codes_at(code_type t)
{
    return (t == MXFP4 ? 1u : 2u) + (agk_facts(t).minimum ? 2u : 0u) + (has_fifth_bit(t) ? 4u : 0u);
}

AGK_INLINE uint32_t half_at(const char *a)
{
    uint16_t d;
    memcpy(&d, a, sizeof d);
    return d;
}

/* A half of each of two blocks (or of one, and 0) as floats. */
AGK_INLINE __m128 halves(const char *a, const char *next, bool two)
{
    return _mm_cvtph_ps(_mm_cvtsi32_si128((int)(two ? half_at(a) | half_at(next) << 16 : half_at(a))));
}

AGK_INLINE __m128 scales(code_type t, const char *a, const char *next, bool two)
{
    if (t != MXFP4) return halves(a, next, two);
    return _mm_setr_ps(agk_half_of_e8m0((uint8_t)*a), two ? agk_half_of_e8m0((uint8_t)*next) : 0.0f, 0.0f, 0.0f);
}

/* 16 nibbles from each 16 bytes of one block, then of the other: low nibbles first, in the order of k. */
AGK_INLINE __m512i nibbles(const char *a, const char *next, bool two)
{
    const __m128i low = _mm_loadu_si128((const __m128i *)(const void *)a);
    const __m128i high = two ? _mm_loadu_si128((const __m128i *)(const void *)next) : _mm_setzero_si128();
    const __m512i q = _mm512_castsi256_si512(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
    const __m512i twice = _mm512_shuffle_i64x2(q, q, 0x50); /* low, low, high, high */
    const __m512i shift = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
    return _mm512_and_si512(_mm512_srlv_epi64(twice, shift), _mm512_set1_epi8(15));
}

AGK_INLINE __m512i look_up(__m128i table, __m512i codes)
{
    return _mm512_xor_si512(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes), _mm512_set1_epi8((char)-128));
}

/* Two blocks (or one, and codes that are multiplied by zeros of the column), unsigned, in the order of k. */
AGK_INLINE __m512i load(code_type t, const char *a, const char *next, bool two)
{
    const size_t at = codes_at(t);
    if (t == Q8_0) {
        const __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(a + at));
        __m256i high = _mm256_setzero_si256();
        if (two) high = _mm256_loadu_si256((const __m256i *)(const void *)(next + at));
        const __m512i q = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
        return _mm512_xor_si512(q, _mm512_set1_epi8((char)-128));
    }
    const __m512i q = nibbles(a + at, next + at, two);
    if (has_fifth_bit(t)) {
        uint32_t bits[2] = {0, 0};
        memcpy(&bits[0], a + at - 4, 4);
        if (two) memcpy(&bits[1], next + at - 4, 4);
        return _mm512_mask_add_epi8(q, (__mmask64)bits[0] | (__mmask64)bits[1] << 32, q, _mm512_set1_epi8(16));
    }
    if (t == IQ4_NL) {
        return look_up(_mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), q);
    }
    if (t == MXFP4) return look_up(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), q);
    return q;
}

AGK_INLINE void step(code_type t, int R, int N, __m512 acc[2][8], const char *const row[2], const char *b, size_t ldb,
                     bool two)
{
    const __m512i spread = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    __m512i w[2];
    __m128 d[2], m[2];
    AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        const char *next = row[r] + agk_facts(t).bytes;
        w[r] = load(t, row[r], next, two);
        d[r] = scales(t, row[r], next, two);
        m[r] = agk_facts(t).minimum ? _mm_mul_ps(halves(row[r] + 2, next + 2, two), _mm_set1_ps(-0x1p-7f)) : d[r];
    }
    AGK_UNROLL for (int n = 0; n < N; ++n)
    {
        const agk_mm_col_q8 *x = (const agk_mm_col_q8 *)(const void *)(b + (size_t)n * ldb);
        const __m512i q = _mm512_loadu_si512(x->q), start = _mm512_loadu_si512(x->start);
        const __m128 dx = _mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(const void *)x->d));
        const __m512i from = agk_facts(t).minimum ? _mm512_setzero_si512() : _mm512_srai_epi32(start, offset_shift(t));
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const __m512 scale = _mm512_permutexvar_ps(spread, _mm512_castps128_ps512(_mm_mul_ps(d[r], dx)));
            const __m512i s = _mm512_dpbusd_epi32(from, w[r], q);
            acc[r][n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), scale, acc[r][n]);
            if (agk_facts(t).minimum) {
                const __m512 least = _mm512_permutexvar_ps(spread, _mm512_castps128_ps512(_mm_mul_ps(m[r], dx)));
                acc[r][n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(start), least, acc[r][n]);
            }
        }
    }
}

AGK_INLINE void panel(code_type type, int R, int N, const agk_mm_block *block, const char *a, const char *b, char *c)
{
    __m512 acc[2][8];
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int n = 0; n < N; ++n) acc[r][n] = _mm512_setzero_ps();
    const char *row[2] = {a, a + (R > 1 ? block->lda : 0)};
    int64_t k = 0;
    for (; k + 2 * AGK_MM_BLOCK <= block->k; k += 2 * AGK_MM_BLOCK, b += sizeof(agk_mm_col_q8)) {
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            _mm_prefetch(row[r] + (size_t)R * block->lda, _MM_HINT_T0); /* of the rows that come next */
            if (type == Q8_0) _mm_prefetch(row[r] + (size_t)R * block->lda + 64, _MM_HINT_T0);
        }
        step(type, R, N, acc, row, b, block->ldb, true);
        row[0] += 2 * agk_facts(type).bytes;
        row[1] += 2 * agk_facts(type).bytes;
    }
    if (k < block->k) step(type, R, N, acc, row, b, block->ldb, false);
    AGK_UNROLL for (int n = 0; n < N; ++n) AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        ((float *)(void *)(c + (size_t)n * block->ldc))[r] = _mm512_reduce_add_ps(acc[r][n]);
    }
}

AGK_INLINE void columns(code_type type, int R, int64_t n, const agk_mm_block *block, const char *a, const char *b,
                        char *c)
{
#define AGK_CASE(N) \
    case N: panel(type, R, N, block, a, b, c); break;
    switch (n) {
        AGK_CASE(1) AGK_CASE(2) AGK_CASE(3) AGK_CASE(4) AGK_CASE(5) AGK_CASE(6) AGK_CASE(7) AGK_CASE(8) default : break;
    }
#undef AGK_CASE
}

AGK_INLINE void dot(code_type type, const agk_mm_block *block)
{
    const char *a = block->a;
    char *c = (char *)block->c;
    int64_t rows = block->rows;
    for (; rows > 0; rows -= 2, a += 2 * block->lda, c += 2 * sizeof(float)) {
        for (int64_t col = 0; col < block->cols; col += 8) {
            const int64_t n = block->cols - col < 8 ? block->cols - col : 8;
            const char *b = (const char *)block->b + (size_t)col * block->ldb;
            char *to = c + (size_t)col * block->ldc;
            if (rows > 1)
                columns(type, 2, n, block, a, b, to);
            else
                columns(type, 1, n, block, a, b, to);
        }
    }
}

#define DOT(kernel, t, ...) \
    void agk_mm_dots_##kernel##_avx512(const agk_mm_block *block) \
    { \
        dot(t, block); \
    }
AGK_MM_OF_32(DOT, )
