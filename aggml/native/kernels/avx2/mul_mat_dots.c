/* mul_mat of few columns, AVX2 + FMA: lanes run along k; weights in f32, f16, bf16 and q8_0 are not repacked.
 *
 * A tile of floats has 3 rows x up to 4 columns or 4 x 2, one of q8_0 2 x 4. One column of floats is multiplied one row
 * at a time. q8_0: products of bytes are added in 16 bits without overflow, 32 elements of k at a time. Not here: other
 * quantized types (mul_mat_dots_q.c), many columns (mul_mat.c). */
#include <immintrin.h>

#include "kernels/inline.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat.h"
#include "math.h"

#include "mul_mat_dots_one.h"

enum { F32, F16, BF16, Q8_0, MOST_ROWS = 4 };

AGK_INLINE float sum8(__m256 x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

AGK_INLINE __m256 load(int type, const char *a)
{
    if (type == F32) return _mm256_loadu_ps((const float *)(const void *)a);
    const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)a);
    if (type == F16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* The last k % 8 elements, padded with zeros. */
AGK_INLINE __m256 load_tail(int type, const char *a, int64_t n)
{
    char padded[32] = {0};
    memcpy(padded, a, (size_t)n * (type == F32 ? 4 : 2));
    return load(type, padded);
}

/* R rows x N columns, at best 3 x 4: 12 sums, 7 loads for 12 products. The rows after them are prefetched at the same
 * k. */
AGK_INLINE void floats(int type, int R, int N, const agk_mm_block *block, const char *a, const char *b, char *c)
{
    const int width = type == F32 ? 4 : 2, line = 64 / width;
    __m256 acc[MOST_ROWS][4];
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int n = 0; n < N; ++n) acc[r][n] = _mm256_setzero_ps();
    int64_t k = 0;
    for (; k + 8 <= block->k; k += 8) {
        __m256 x[MOST_ROWS];
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const char *row = a + (size_t)r * block->lda + (size_t)(k * width);
            x[r] = load(type, row);
            if (k % line == 0) _mm_prefetch(row + (size_t)R * block->lda, _MM_HINT_T0);
        }
        AGK_UNROLL for (int n = 0; n < N; ++n)
        {
            const __m256 y = load(F32, b + (size_t)n * block->ldb + (size_t)(k * 4));
            AGK_UNROLL for (int r = 0; r < R; ++r) v_add_product(&acc[r][n], x[r], y);
        }
    }
    if (k < block->k) {
        AGK_UNROLL for (int n = 0; n < N; ++n)
        {
            const __m256 y = load_tail(F32, b + (size_t)n * block->ldb + (size_t)(k * 4), block->k - k);
            AGK_UNROLL for (int r = 0; r < R; ++r)
            {
                const char *row = a + (size_t)r * block->lda + (size_t)(k * width);
                acc[r][n] = _mm256_fmadd_ps(load_tail(type, row, block->k - k), y, acc[r][n]);
            }
        }
    }
    AGK_UNROLL for (int n = 0; n < N; ++n) AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        float *out = (float *)(void *)(c + (size_t)n * block->ldc) + r;
        *out = block->add ? *out + sum8(acc[r][n]) : sum8(acc[r][n]);
    }
}

/* -- one column of floats ---------------------------------------------------------------------------------------- */

enum {
    CHAINS = 8,  /* independent sums of one row: no FMA waits for the one before it */
    SHORT = 256, /* elements; rows up to this length need only 4 sums, because the next row starts meanwhile */
    LONG = 4096, /* elements of f32; longer columns leave L1, so 8 or 4 rows share each read of the column */
    /* A row of f32 alone is a stream of memory. One line of so many bytes is asked for, FAR_AHEAD, into L2; the
     * processor reads the others by itself. */
    ASKED = 512,
    FAR_AHEAD = 6144,
    /* Of rows_at_once: so far ahead each line of a row is asked for, into L1. */
    ROW_AHEAD = 768,
    /* f16 and bf16 are multiplied 2 rows at a time, or 4 if they are longer than LONG, and the rows after them are
     * asked for in the order of memory, all lines, into L2. One thread of a Zen 4 beside other programs, GB/s of
     * processor time, rows of 14336, 4096, 2048 elements, and of 2048 in L3, where a plain read from memory has 33:
     * bf16 15.5, 22.3, 23.5, 46 (8 rows at once, or row by row) -> 23.7, 24.5, 24.5, 44; f16 15.9, 24.2, 29.8, 39 ->
     * 22.2, 23.3, 25.4, 50. f32 that way had 19 and 18 instead of 25 and 22. */
};

/* Stores elements 0, 2, .. 14 of each 16, then 1, 3, .. 15: the order of the low and high halves of 8 words of bf16. */
static void take_apart(int64_t k, const float *b, float *to)
{
    for (int64_t i = 0; i + 16 <= k; i += 16) {
        const __m256 x = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(b + i)), _mm_loadu_ps(b + i + 8), 1);
        const __m256 y =
            _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(b + i + 4)), _mm_loadu_ps(b + i + 12), 1);
        _mm256_storeu_ps(to + i, _mm256_shuffle_ps(x, y, 0x88));
        _mm256_storeu_ps(to + i + 8, _mm256_shuffle_ps(x, y, 0xdd));
    }
}

/* 16 elements of a short row; of bf16 the even-numbered ones come first. */
AGK_INLINE void load16(int type, const char *a, __m256 x[2])
{
    if (type == BF16) {
        __m256i both = _mm256_loadu_si256((const __m256i *)(const void *)a);
        __asm__("" : "+x"(both)); /* otherwise it is loaded twice, and in cache the loads are the bottleneck */
        x[0] = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
        x[1] = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000)));
    } else {
        x[0] = load(type, a);
        x[1] = load(type, a + (type == F32 ? 32 : 16));
    }
}

/* The last n elements of a row, fewer than a full step. */
AGK_INLINE __m256 rest_of_one(int type, int64_t n, const char *a, const float *b, __m256 sum)
{
    const int width = type == F32 ? 4 : 2;
    for (; n >= 8; n -= 8, a += 8 * width, b += 8) sum = _mm256_fmadd_ps(load(type, a), _mm256_loadu_ps(b), sum);
    if (n <= 0) return sum;
    return _mm256_fmadd_ps(load_tail(type, a, n), load_tail(F32, (const char *)b, n), sum);
}

/* The sums of 4 rows, each in 8 lanes, become 4 results. */
AGK_INLINE void put_4(const agk_mm_block *block, const __m256 sum[4], float *c)
{
    const __m256 fours = _mm256_hadd_ps(_mm256_hadd_ps(sum[0], sum[1]), _mm256_hadd_ps(sum[2], sum[3]));
    const __m128 all = _mm_add_ps(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1));
    _mm_storeu_ps(c, block->add ? _mm_add_ps(_mm_loadu_ps(c), all) : all);
}

/* One row, in `chains` independent sums. `apart`: b; for bf16 b split into even and odd elements. */
AGK_INLINE __m256 one_row(int type, int chains, const agk_mm_block *block, const char *a, const float *apart)
{
    const int width = type == F32 ? 4 : 2, step = 8 * chains;
    __m256 sum[CHAINS];
    AGK_UNROLL for (int i = 0; i < chains; ++i) sum[i] = _mm256_setzero_ps();
    int64_t k = 0;
    for (; k + step <= block->k; k += step) {
        AGK_UNROLL for (int i = 0; i < chains; i += 2)
        {
            __m256 x[2];
            load16(type, a + (k + 8 * i) * width, x);
            sum[i] = _mm256_fmadd_ps(x[0], _mm256_loadu_ps(apart + k + 8 * i), sum[i]);
            sum[i + 1] = _mm256_fmadd_ps(x[1], _mm256_loadu_ps(apart + k + 8 * i + 8), sum[i + 1]);
        }
        if (k * width % ASKED == 0) _mm_prefetch(a + k * width + FAR_AHEAD, _MM_HINT_T1);
    }
    AGK_UNROLL for (int i = 0; i < chains; ++i) __asm__("" : "+x"(sum[i])); /* otherwise they are spilled */
    sum[0] = rest_of_one(type, block->k - k, a + k * width, (const float *)block->b + k, sum[0]);
    AGK_UNROLL for (int half = chains / 2; half > 0; half /= 2)
    {
        AGK_UNROLL for (int i = 0; i < half; ++i) sum[i] = _mm256_add_ps(sum[i], sum[i + half]);
    }
    return sum[0];
}

/* Rows one after the other; the lanes of 4 sums are added up together. */
AGK_INLINE void rows_in_turn(int type, int chains, const agk_mm_block *block, const char *a, int64_t rows,
                             const float *apart, float *c)
{
    for (; rows >= 4; rows -= 4, c += 4) {
        __m256 sum[4];
        AGK_UNROLL for (int r = 0; r < 4; ++r, a += block->lda) sum[r] = one_row(type, chains, block, a, apart);
        put_4(block, sum, c);
    }
    for (; rows > 0; --rows, a += block->lda, ++c) {
        const float sum = sum8(one_row(type, chains, block, a, apart));
        *c = block->add ? *c + sum : sum;
    }
}

/* 4 or 8 rows of f32 at once, one sum each; every cache line is prefetched. */
AGK_INLINE void rows_at_once(int R, const agk_mm_block *block, const char *a, float *c)
{
    const float *b = block->b;
    __m256 sum[8];
    AGK_UNROLL for (int r = 0; r < R; ++r) sum[r] = _mm256_setzero_ps();
    int64_t k = 0;
    for (; k + 32 <= block->k; k += 32) {
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const char *row = a + (size_t)r * block->lda + 4 * k;
            AGK_UNROLL for (int i = 0; i < 32; i += 8)
            {
                sum[r] = _mm256_fmadd_ps(load(F32, row + 4 * i), _mm256_loadu_ps(b + k + i), sum[r]);
            }
            _mm_prefetch(row + ROW_AHEAD, _MM_HINT_T0);
            _mm_prefetch(row + ROW_AHEAD + 64, _MM_HINT_T0);
        }
    }
    AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        const char *row = a + (size_t)r * block->lda + 4 * k;
        sum[r] = rest_of_one(F32, block->k - k, row, b + k, sum[r]);
    }
    put_4(block, sum, c);
    if (R == 8) put_4(block, sum + 4, c + 4);
}

/* R rows of f16 or bf16, in 8 sums of all rows. */
AGK_INLINE void rows_of_halves(int type, int R, const agk_mm_block *block, const char *a, __m256 *of)
{
    enum { STEP = 32 };
    const int sums = R == 2 ? 4 : 2;
    const float *b = block->b;
    const char *next = a + (size_t)R * block->lda;
    __m256 sum[4][4];
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int i = 0; i < sums; ++i) sum[r][i] = _mm256_setzero_ps();
    int64_t k = 0;
    for (; k + STEP <= block->k; k += STEP, next += 64 * R) {
        AGK_UNROLL for (int i = 0; i < STEP / 8; ++i)
        {
            const __m256 y = _mm256_loadu_ps(b + k + 8 * i);
            AGK_UNROLL for (int r = 0; r < R; ++r)
            {
                const __m256 x = load(type, a + (size_t)r * block->lda + 2 * (k + 8 * i));
                v_add_product(&sum[r][i % sums], x, y);
            }
        }
        AGK_UNROLL for (int r = 0; r < R; ++r) _mm_prefetch(next + 64 * r, _MM_HINT_T1);
    }
    AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        AGK_UNROLL for (int i = 1; i < sums; ++i) sum[r][0] = _mm256_add_ps(sum[r][0], sum[r][i]);
        of[r] = rest_of_one(type, block->k - k, a + (size_t)r * block->lda + 2 * k, b + k, sum[r][0]);
    }
}

/* One column, with more than SHORT elements if they are bf16. */
AGK_INLINE void column_of_halves(int type, const agk_mm_block *block)
{
    const char *a = block->a;
    int64_t row = 0;
    for (; row + 4 <= block->rows; row += 4, a += 4 * block->lda) {
        __m256 sum[4];
        if (block->k > LONG) {
            rows_of_halves(type, 4, block, a, sum);
        } else {
            rows_of_halves(type, 2, block, a, sum);
            rows_of_halves(type, 2, block, a + 2 * block->lda, sum + 2);
        }
        put_4(block, sum, block->c + row);
    }
    for (; row < block->rows; ++row, a += block->lda) floats(type, 1, 1, block, a, block->b, (char *)(block->c + row));
}

AGK_INLINE void one_column(int type, const agk_mm_block *block)
{
    const char *a = block->a;
    float *c = block->c;
    int64_t rows = block->rows;
    if (block->k <= SHORT && type != F16) {
        float of_bf16[SHORT];
        if (type == BF16) take_apart(block->k, block->b, of_bf16);
        rows_in_turn(type, 4, block, a, rows, type == BF16 ? of_bf16 : block->b, c);
    } else if (type == F32) {
        if (block->k > LONG) {
            for (; rows >= 8; rows -= 8, a += 8 * block->lda, c += 8) rows_at_once(8, block, a, c);
            for (; rows >= 4; rows -= 4, a += 4 * block->lda, c += 4) rows_at_once(4, block, a, c);
        }
        rows_in_turn(F32, CHAINS, block, a, rows, block->b, c);
    } else {
        column_of_halves(type, block);
    }
}

AGK_INLINE void quantized(int R, int N, const agk_mm_block *block, const char *a, const char *b, char *c)
{
    __m256 acc[MOST_ROWS][4];
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int n = 0; n < N; ++n) acc[r][n] = _mm256_setzero_ps();
    for (int64_t i = 0; i < block->k / AGK_MM_BLOCK; ++i) {
        AGK_UNROLL for (int r = 0; r < R; ++r)
        {
            const char *weights = a + (size_t)r * block->lda + (size_t)i * sizeof(agk_block_q8_0);
            uint16_t half;
            memcpy(&half, weights, sizeof half);
            const float d = _cvtsh_ss(half);
            const __m256i q = _mm256_loadu_si256((const __m256i *)(const void *)(weights + 2));
            const __m256i low = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(q));
            const __m256i high = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(q, 1));
            _mm_prefetch(weights + (size_t)R * block->lda, _MM_HINT_T0);
            AGK_UNROLL for (int n = 0; n < N; ++n)
            {
                const agk_mm_col_q8 *col = (const agk_mm_col_q8 *)(const void *)(b + (size_t)n * block->ldb) + i / 2;
                const __m128i *x = (const __m128i *)(const void *)(col->q + (i & 1) * AGK_MM_BLOCK);
                const __m256i x0 = _mm256_cvtepi8_epi16(_mm_loadu_si128(x));
                const __m256i x1 = _mm256_cvtepi8_epi16(_mm_loadu_si128(x + 1));
                const __m256i s = _mm256_add_epi32(_mm256_madd_epi16(low, x0), _mm256_madd_epi16(high, x1));
                acc[r][n] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s), _mm256_set1_ps(d * col->d[i & 1]), acc[r][n]);
            }
        }
    }
    AGK_UNROLL for (int n = 0; n < N; ++n) AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        ((float *)(void *)(c + (size_t)n * block->ldc))[r] = sum8(acc[r][n]);
    }
}

AGK_INLINE void panel(int type, int R, int N, const agk_mm_block *block, const char *a, const char *b, char *c)
{
    if (type == Q8_0)
        quantized(R, N, block, a, b, c);
    else
        floats(type, R, N, block, a, b, c);
}

/* R rows x all columns, up to 4 at a time: 5 are 3 and 2, 6 are 3 and 3. */
AGK_INLINE void columns(int type, int R, const agk_mm_block *block, const char *a, char *c)
{
    for (int64_t col = 0, now = 0; col < block->cols; col += now) {
        const char *b = (const char *)block->b + (size_t)col * block->ldb;
        char *to = c + (size_t)col * block->ldc;
        const int64_t left = block->cols - col;
        now = left == 5 || left == 6 ? 3 : left < 4 ? left : 4;
        switch (now) {
        case 1: panel(type, R, 1, block, a, b, to); break;
        case 2: panel(type, R, 2, block, a, b, to); break;
        case 3: panel(type, R, 3, block, a, b, to); break;
        default: panel(type, R, 4, block, a, b, to); break;
        }
    }
}

/* Up to 2 columns, 4 rows at a time. */
AGK_INLINE void two_columns(int type, const agk_mm_block *block, const char *a, char *c)
{
    if (block->cols == 1)
        panel(type, 4, 1, block, a, block->b, c);
    else
        panel(type, 4, 2, block, a, block->b, c);
}

/* All rows, R at a time, the last ones two or one at a time. 4 rows are only for up to 2 columns: with 3 there are 12
 * sums, 4 rows and a column, more than 16 registers, and a sum in memory makes each product wait for the last one. */
AGK_INLINE void all_rows(int type, int R, const agk_mm_block *block)
{
    const char *a = block->a;
    char *c = (char *)block->c;
    int64_t rows = block->rows;
    for (; rows >= R; rows -= R, a += (size_t)R * block->lda, c += (size_t)R * sizeof(float)) {
        if (R == 3 && rows == 4) break; /* two twice, not three and one */
        if (R == 4)
            two_columns(type, block, a, c);
        else
            columns(type, R, block, a, c);
    }
    for (; R > 2 && rows >= 2; rows -= 2, a += 2 * block->lda, c += 2 * sizeof(float)) columns(type, 2, block, a, c);
    if (rows > 0) columns(type, 1, block, a, c);
}

AGK_INLINE void dot(int type, const agk_mm_block *block)
{
    if (block->cols == 1)
        one_column(type, block);
    else if (block->cols <= 2)
        all_rows(type, 4, block);
    else
        all_rows(type, 3, block);
}

void agk_mm_dots_f32_avx2(const agk_mm_block *block)
{
    dot(F32, block);
}

void agk_mm_dots_f16_avx2(const agk_mm_block *block)
{
    dot(F16, block);
}

void agk_mm_dots_bf16_avx2(const agk_mm_block *block)
{
    dot(BF16, block);
}

void agk_mm_dots_q8_0_avx2(const agk_mm_block *block)
{
    if (block->cols == 1 && block->k <= ONE_MOST_Q8_0 && !one_has_least(block))
        one_column_of_q8_0(block);
    else
        all_rows(Q8_0, 2, block);
}
