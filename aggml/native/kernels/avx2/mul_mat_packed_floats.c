/* packed weights of bf16 times up to 8 columns of floats, AVX2 + FMA.
 *
 * A line of weights is 2 k of 16 rows (mul_mat_packed.h: half a panel of tiles): a shift and a mask make four vectors
 * of floats of it, which are multiplied by 2 k of each column. So nothing is added up across lanes, and weights are one
 * stream. 4 columns at a time: 16 products take 10 loads and 30 instructions in all. Columns are read as they lie.
 * Not here: pairs of bf16 (amd512/mul_mat_packed_pairs.h), types with blocks (mul_mat_packed.c). */
#include "table/kernel_types.h"
#include "kernels/mul_mat_packed.h"
#include "math.h"

enum {
    AT_ONCE = 4,   /* columns: 8 sums */
    K_BLOCK = 256, /* k of a group that all columns are multiplied by while they are in L1: 8 KB */
    AHEAD = 6144,  /* bytes, into L2, as in vec/mul_mat_packed_narrow.h */
};

typedef struct sums {
    vf of[AGK_PACKED_COLUMNS][2][2]; /* column, half of the rows, even or odd k */
} sums;

/* In the order of the program. Even and odd k are loaded one after the other: together with 12 sums they would need
 * more than 16 registers, and a sum in memory makes each product wait for the last one. */
AGK_INLINE __m256i load(const char *a)
{
    __m256i x;
    __asm__ volatile("vmovdqu %1, %0" : "=x"(x) : "m"(*(const char (*)[32])a));
    return x;
}

/* N columns from n on times k elements of a group. Up to 3 columns keep two sums each, so that no product waits. */
AGK_INLINE void columns(int N, const agk_mm_block *b, int64_t n, int64_t k0, int64_t k, const char *a, size_t far,
                        sums *all)
{
    const int chains = N < AT_ONCE ? 2 : 1;
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    const char *x = (const char *)b->b + (size_t)n * b->ldb + (size_t)k0 * sizeof(float);
    vf sum[AT_ONCE][2][2];
    AGK_UNROLL for (int j = 0; j < N; ++j) AGK_UNROLL for (int g = 0; g < 2; ++g)
        AGK_UNROLL for (int c = 0; c < chains; ++c)
    {
        sum[j][g][c] = all->of[n + j][g][c];
    }
    for (int64_t i = 0; i < k; i += 2, a += 64, x += 2 * sizeof(float)) {
        AGK_UNROLL for (int odd = 0; odd < 2; ++odd)
        {
            vf w[2];
            AGK_UNROLL for (int g = 0; g < 2; ++g)
            {
                const __m256i both = load(a + 32 * g);
                w[g] = _mm256_castsi256_ps(odd ? _mm256_and_si256(both, upper) : _mm256_slli_epi32(both, 16));
            }
            AGK_UNROLL for (int j = 0; j < N; ++j)
            {
                const vf y = v_set(((const float *)(const void *)(x + (size_t)j * b->ldb))[odd]);
                AGK_UNROLL for (int g = 0; g < 2; ++g) v_add_product(&sum[j][g][odd % chains], w[g], y);
            }
        }
        if (far > 0) _mm_prefetch(a + far, _MM_HINT_T1);
    }
    AGK_UNROLL for (int j = 0; j < N; ++j) AGK_UNROLL for (int g = 0; g < 2; ++g)
        AGK_UNROLL for (int c = 0; c < chains; ++c)
    {
        all->of[n + j][g][c] = sum[j][g][c];
    }
}

/* How many of n columns to multiply next: 5 are 3 and 2, 6 are 3 and 3. */
AGK_INLINE int64_t next_of(int64_t n)
{
    return n == 5 || n == 6 ? 3 : n < AT_ONCE ? n : AT_ONCE;
}

/* A group of 16 rows, of which `rows` are stored. */
static void group(const agk_mm_block *b, const char *a, int64_t rows, float *c)
{
    sums all;
    for (int64_t n = 0; n < b->cols; ++n)
        all.of[n][0][0] = all.of[n][0][1] = all.of[n][1][0] = all.of[n][1][1] = v_zero();
    a += AGK_PACKED_HEAD;
    for (int64_t k0 = 0; k0 < b->k; k0 += K_BLOCK, a += 32 * K_BLOCK) {
        const int64_t k = b->k - k0 < K_BLOCK ? b->k - k0 : K_BLOCK;
        for (int64_t n = 0, now = 0; n < b->cols; n += now) {
            const size_t far = n == 0 ? AHEAD : 0;
            now = next_of(b->cols - n);
            switch (now) {
            case 1: columns(1, b, n, k0, k, a, far, &all); break;
            case 2: columns(2, b, n, k0, k, a, far, &all); break;
            case 3: columns(3, b, n, k0, k, a, far, &all); break;
            default: columns(4, b, n, k0, k, a, far, &all);
            }
        }
    }
    for (int64_t n = 0; n < b->cols; ++n) AGK_UNROLL for (int g = 0; g < 2; ++g)
        {
            const int64_t left = rows - 8 * g;
            float *to = (float *)(void *)((char *)(c + 8 * g) + (size_t)n * b->ldc);
            const vf sum = all.of[n][g][0] + all.of[n][g][1];
            if (left >= 8)
                v_store(to, sum);
            else if (left > 0)
                v_store_n(to, sum, left);
        }
}

void agk_mm_packed_floats_avx2(const agk_mm_block *b)
{
    const char *a = b->a;
    for (int64_t row = 0; row < b->rows; row += AGK_PACKED_ROWS, a += b->lda) {
        group(b, a, b->rows - row < AGK_PACKED_ROWS ? b->rows - row : AGK_PACKED_ROWS, b->c + row);
    }
}
