/* mul_mat of q8_0 and q4_0 with few columns, AVX-512 VNNI: weights are read once, as they lie, 64 k at a time.
 *
 * Weights are made unsigned (q8_0: + 128, q4_0: its codes are), which the start values of the column take off again.
 * Reached only through lines that need AGK_AVX512_VNNI. Not here: many columns (mul_mat_q8.c). */
#include "mul_mat_tile.h"

enum { Q8_0, Q4_0 };

AGK_INLINE size_t block_size(int type)
{
    return type == Q8_0 ? sizeof(agk_block_q8_0) : sizeof(agk_block_q4_0);
}

AGK_INLINE uint32_t scale_of(const char *a)
{
    uint16_t d;
    memcpy(&d, a, sizeof d);
    return d;
}

/* Two blocks (or one and zeros), unsigned, in the order of k; *d is their two scales. */
AGK_INLINE __m512i load(int type, const char *a, bool two, __m128 *d)
{
    const char *next = a + block_size(type);
    *d = _mm_cvtph_ps(_mm_cvtsi32_si128((int)(two ? scale_of(a) | scale_of(next) << 16 : scale_of(a))));
    if (type == Q8_0) {
        const __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(a + 2));
        __m256i high = _mm256_setzero_si256();
        if (two) high = _mm256_loadu_si256((const __m256i *)(const void *)(next + 2));
        const __m512i q = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
        return _mm512_xor_si512(q, _mm512_set1_epi8((char)-128));
    }
    const __m128i low = _mm_loadu_si128((const __m128i *)(const void *)(a + 2));
    const __m128i high = two ? _mm_loadu_si128((const __m128i *)(const void *)(next + 2)) : _mm_setzero_si128();
    const __m512i q = _mm512_castsi256_si512(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
    const __m512i twice = _mm512_shuffle_i64x2(q, q, 0x50); /* low, low, high, high */
    const __m512i shift = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
    return _mm512_and_si512(_mm512_srlv_epi64(twice, shift), _mm512_set1_epi8(15));
}

AGK_INLINE void step(int type, int R, int N, __m512 acc[2][8], const char *const row[2], const char *b, size_t ldb,
                     bool two)
{
    const __m512i spread = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    __m512i w[2];
    __m128 d[2];
    AGK_UNROLL for (int r = 0; r < R; ++r) w[r] = load(type, row[r], two, &d[r]);
    AGK_UNROLL for (int n = 0; n < N; ++n)
    {
        const agk_mm_col_q8 *x = (const agk_mm_col_q8 *)(const void *)(b + (size_t)n * ldb);
        const __m512i q = _mm512_loadu_si512(x->q);
        const __m128 dx = _mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(const void *)x->d));
        __m512i start = _mm512_loadu_si512(x->start);
        if (type == Q4_0) start = _mm512_srai_epi32(start, 4); /* -8 instead of -128 */
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const __m512 scale = _mm512_permutexvar_ps(spread, _mm512_castps128_ps512(_mm_mul_ps(d[r], dx)));
            const __m512i s = _mm512_dpbusd_epi32(start, w[r], q);
            acc[r][n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), scale, acc[r][n]);
        }
    }
}

AGK_INLINE void panel(int type, int R, int N, const agk_mm_block *block, const char *a, const char *b, char *c)
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
        row[0] += 2 * block_size(type);
        row[1] += 2 * block_size(type);
    }
    if (k < block->k) step(type, R, N, acc, row, b, block->ldb, false);
    AGK_UNROLL for (int n = 0; n < N; ++n) AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        ((float *)(void *)(c + (size_t)n * block->ldc))[r] = _mm512_reduce_add_ps(acc[r][n]);
    }
}

AGK_INLINE void columns(int type, int R, int64_t n, const agk_mm_block *block, const char *a, const char *b, char *c)
{
#define AGK_CASE(N) \
    case N: panel(type, R, N, block, a, b, c); break;
    switch (n) {
        AGK_CASE(1) AGK_CASE(2) AGK_CASE(3) AGK_CASE(4) AGK_CASE(5) AGK_CASE(6) AGK_CASE(7) AGK_CASE(8) default : break;
    }
#undef AGK_CASE
}

AGK_INLINE void dot(int type, const agk_mm_block *block)
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

void agk_mm_dot_q8_0_avx512(const agk_mm_block *block)
{
    dot(Q8_0, block);
}

void agk_mm_dot_q4_0_avx512(const agk_mm_block *block)
{
    dot(Q4_0, block);
}
