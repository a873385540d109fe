/* mul_mat of q8_0 and q4_0 with many columns, AVX-512 VNNI: 4 rows x 32 columns.
 *
 * Lanes are columns. A block of 32 k of b is 8 vectors of 4 k, kept in registers for 4 rows; 4 k of a are one
 * broadcast. vpdpbusd needs one unsigned operand: b has 128 added, and each row starts at -128 * sum(q) instead of
 * zero. There is one scale per 32 k, so 8 products need a multiplication and an fma: at most 80 % of the peak can be
 * reached. Used only through lines that need AGK_AVX512_VNNI. Not here: few columns (mul_mat_dots_32.c). */
#include "mul_mat_blocks.h"

void agk_mm_blocks_pack_q8_avx512(int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    agk_mm_unit_q8 *y = out;
    const int64_t blocks = k / AGK_MM_BLOCK;
    const __m512i offset = _mm512_set1_epi8((char)-128);
    for (int64_t i = 0; i < blocks; i += 2, y += 2) {
        _Alignas(64) float d[2][16] = {{0}};
        __m512i r[16];
        agk_transpose_q8(b, ldb, cols, i / 2, r, d);
        for (int half = 0; half < 2 && i + half < blocks; ++half) {
            _mm512_storeu_ps(y[half].d, _mm512_load_ps(d[half]));
            for (int v = 0; v < 8; ++v) _mm512_storeu_si512(y[half].q[v], _mm512_xor_si512(r[8 * half + v], offset));
        }
    }
}

AGK_INLINE void put_row(agk_mm_row_q8 *y, uint16_t d, __m256i q)
{
    const __m256i products = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8((char)-128), q);
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(products), _mm256_extracti128_si256(products, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    y->d = _cvtsh_ss(d);
    y->start = -_mm_cvtsi128_si32(s);
    _mm256_storeu_si256((__m256i *)(void *)y->q, q);
}

void agk_mm_blocks_rows_q8_0_avx512(const void *src, void *dst, int64_t n)
{
    const agk_block_q8_0 *x = src;
    agk_mm_row_q8 *y = dst;
    for (int64_t i = 0; i < n / AGK_MM_BLOCK; ++i) {
        put_row(&y[i], x[i].d, _mm256_loadu_si256((const __m256i *)(const void *)x[i].qs));
    }
}

void agk_mm_blocks_rows_q4_0_avx512(const void *src, void *dst, int64_t n)
{
    const agk_block_q4_0 *x = src;
    agk_mm_row_q8 *y = dst;
    for (int64_t i = 0; i < n / AGK_MM_BLOCK; ++i) {
        const __m128i pairs = _mm_loadu_si128((const __m128i *)(const void *)x[i].qs);
        const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(pairs), _mm_srli_epi16(pairs, 4), 1);
        const __m256i codes = _mm256_and_si256(both, _mm256_set1_epi8(15));
        put_row(&y[i], x[i].d, _mm256_sub_epi8(codes, _mm256_set1_epi8(8)));
    }
}

AGK_INLINE void tile(int R, int W, const agk_mm_block *block, const char *a, const char *b, float *c, int64_t cols)
{
    __m512 acc[8][3];
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int w = 0; w < W; ++w) acc[r][w] = _mm512_setzero_ps();
    for (int64_t i = 0; i < block->k / AGK_MM_BLOCK; ++i) {
        __m512i q[8][2];
        __m512 d[2];
        AGK_UNROLL for (int w = 0; w < W; ++w)
        {
            const agk_mm_unit_q8 *unit = (const agk_mm_unit_q8 *)(const void *)(b + (size_t)w * block->ldb) + i;
            d[w] = _mm512_loadu_ps(unit->d);
            AGK_UNROLL for (int v = 0; v < 8; ++v) q[v][w] = _mm512_loadu_si512(unit->q[v]);
        }
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const agk_mm_row_q8 *row = (const agk_mm_row_q8 *)(const void *)(a + (size_t)r * block->lda) + i;
            __m512i s[2];
            s[0] = _mm512_set1_epi32(row->start);
            s[1] = s[0];
            AGK_UNROLL for (int v = 0; v < 8; ++v)
            {
                int four;
                memcpy(&four, row->q + 4 * v, sizeof four);
                __m512i x = _mm512_set1_epi32(four);
                if (W > 1) __asm__("" : "+v"(x)); /* one load for both products */
                AGK_UNROLL for (int w = 0; w < W; ++w) s[w] = _mm512_dpbusd_epi32(s[w], q[v][w], x);
            }
            const __m512 scale = _mm512_set1_ps(row->d);
            AGK_UNROLL for (int w = 0; w < W; ++w)
            {
                acc[r][w] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[w]), _mm512_mul_ps(scale, d[w]), acc[r][w]);
            }
        }
    }
    agk_store_tile(R, W, acc, c, block->ldc, cols, block->add);
}

AGK_INLINE void rows(int W, const agk_mm_block *block, const char *b, float *c, int64_t cols)
{
    const char *a = block->a;
    int64_t left = block->rows;
    for (; left >= 4; left -= 4, a += 4 * block->lda, c += 4) tile(4, W, block, a, b, c, cols);
    for (; left > 0; --left, a += block->lda, ++c) tile(1, W, block, a, b, c, cols);
}

void agk_mm_blocks_q8_avx512(const agk_mm_block *block)
{
    const char *b = block->b;
    char *c = (char *)block->c;
    for (int64_t col = 0; col < block->cols; col += 32, b += 2 * block->ldb, c += 32 * block->ldc) {
        const int64_t left = block->cols - col;
        if (left <= 16)
            rows(1, block, b, (float *)(void *)c, left);
        else
            rows(2, block, b, (float *)(void *)c, left < 32 ? left : 32);
    }
}
