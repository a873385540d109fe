/* Products of packed weights q2_K to q6_K with 4 to 8 columns on AVX2 without vpdpbusd. Included by
 * mul_mat_packed_narrow.h. Not here: other types, fewer columns.
 *
 * Products are bound by the pipes: a Zen 4 does two multiplications (of bytes, words or floats) in a cycle, and the
 * additions of words take some of their places. So scales multiply sums of words as integers, in the vpmaddwd that adds
 * them up anyway; d is applied once for 256 k, and so are minimums, whose sums stay in registers. The first 4 columns
 * are multiplied as soon as codes are unpacked, which are stored for the others. */
#ifndef AGK_VEC_PACKED_NARROW_MANY_H
#define AGK_VEC_PACKED_NARROW_MANY_H

#include "mul_mat_packed_narrow_codes.h"

AGK_INLINE bool served_many(code_type t, int64_t cols)
{
    return t >= Q2_K && t <= Q6_K && cols >= 4; /* q4_K with 2 columns: 55 cycles instead of 50 */
}

/* Codes of q3_K, which take the most instructions to unpack, are all stored before they are multiplied. 8 (4) columns:
 * 150 (90) cycles instead of 155 (93). */
AGK_INLINE bool multiplied_when_unpacked(code_type t)
{
    return t != Q3_K;
}

/* The offset of codes of q3_K and q6_K is taken off the sums of words, or those of q6_K would not fit 16 bits: a sum
 * begins with the offset times the elements, and products are subtracted. Of q6_K sums of 8 * (32 - code) * x are
 * -32768 to 32512, even if an element is -128, as those of a q8_0 tensor may be; the other way round 32768 would not
 * fit. */
AGK_INLINE bool subtracted(code_type t)
{
    return !has_minimum(t);
}

/* How many products of fours have a sum of 16 bits: 2 * 8 * 15 * 128 = 30720, 2 * 4 * 31 * 128 = 31744. */
AGK_INLINE int chain_of(code_type t)
{
    return t == Q4_K ? 8 : 4;
}

/* What 16 rows of a block need for all columns. */
typedef struct many_columns {
    _Alignas(32) char codes[8][2][32];
    _Alignas(32) float sums[AGK_PACKED_COLUMNS][2][8]; /* of 256 k, not yet multiplied by d */
    _Alignas(32) float minimums[16][2][8];
} many_columns;

/* *p0 += w0 * x, *p1 += w1 * x for 4 elements of a column (or -=), in the order of the program: GCC 12 needs more
 * values at a time than there are registers. */
AGK_INLINE void next_fours(bool minus, __m256i *p0, __m256i *p1, __m256i w0, __m256i w1, const char *x)
{
    const int32_t *at = (const int32_t *)(const void *)x;
    __m256i column, y0, y1;
    if (minus)
        __asm__ volatile("vpbroadcastd %5, %2\n\tvpmaddubsw %2, %6, %3\n\tvpmaddubsw %2, %7, %4\n\t"
                         "vpsubw %3, %0, %0\n\tvpsubw %4, %1, %1"
                         : "+x"(*p0), "+x"(*p1), "=&x"(column), "=&x"(y0), "=&x"(y1)
                         : "m"(*at), "x"(w0), "x"(w1));
    else
        __asm__ volatile("vpbroadcastd %5, %2\n\tvpmaddubsw %2, %6, %3\n\tvpmaddubsw %2, %7, %4\n\t"
                         "vpaddw %3, %0, %0\n\tvpaddw %4, %1, %1"
                         : "+x"(*p0), "+x"(*p1), "=&x"(column), "=&x"(y0), "=&x"(y1)
                         : "m"(*at), "x"(w0), "x"(w1));
}

/* The first products of a chain; taken `from` what is at `start`. */
AGK_INLINE void first_fours(bool from, __m256i *p0, __m256i *p1, __m256i w0, __m256i w1, const char *x,
                            const char *start)
{
    const int32_t *at = (const int32_t *)(const void *)x;
    __m256i column;
    if (from)
        __asm__ volatile("vpbroadcastd %3, %2\n\tvpmaddubsw %2, %4, %0\n\tvpmaddubsw %2, %5, %1\n\t"
                         "vpbroadcastd %6, %2\n\tvpsubw %0, %2, %0\n\tvpsubw %1, %2, %1"
                         : "=&x"(*p0), "=&x"(*p1), "=&x"(column)
                         : "m"(*at), "x"(w0), "x"(w1), "m"(*(const int32_t *)(const void *)start));
    else
        __asm__ volatile("vpbroadcastd %3, %2\n\tvpmaddubsw %2, %4, %0\n\tvpmaddubsw %2, %5, %1"
                         : "=&x"(*p0), "=&x"(*p1), "=&x"(column)
                         : "m"(*at), "x"(w0), "x"(w1));
}

/* An aligned vector, loaded once and not before. */
AGK_INLINE __m256i loaded_now(const __m256i *p)
{
    __m256i x;
    __asm__ volatile("vmovdqa %1, %0" : "=x"(x) : "m"(*p));
    return x;
}

/* Each byte at p shifted right (left, if negative), in one piece: with intrinsics q6_K with 8 columns takes 152 cycles
 * for 32 k of 16 rows instead of 148. */
AGK_INLINE __m256i bits_now(const char *p, int right, __m256i mask)
{
    const __m256i *from = (const __m256i *)(const void *)p;
    __m256i x;
#ifdef AGK_NO_UNROLL
    x = _mm256_loadu_si256(from);
    return _mm256_and_si256(right > 0 ? _mm256_srli_epi16(x, right) : _mm256_slli_epi16(x, -right), mask);
#else
    if (right == 0)
        __asm__ volatile("vpand %1, %2, %0" : "=x"(x) : "m"(*from), "x"(mask));
    else if (right > 0)
        __asm__ volatile("vmovdqu %1, %0\n\tvpsrlw %3, %0, %0\n\tvpand %2, %0, %0"
                         : "=&x"(x)
                         : "m"(*from), "x"(mask), "i"(right > 0 ? right : 0));
    else
        __asm__ volatile("vmovdqu %1, %0\n\tvpsllw %3, %0, %0\n\tvpand %2, %0, %0"
                         : "=&x"(x)
                         : "m"(*from), "x"(mask), "i"(right < 0 ? -right : 0));
    return x;
#endif
}

/* The codes of vector v of a part of half a block, whose vectors begin at `data`, of 8 rows. */
AGK_INLINE __m256i code_now(code_type t, const char *data, int part, int v, const __m256i mask[2])
{
    __m256i code = bits_now(data + low_bits_at(t, 0, part, v), low_shift(t, part), mask[0]);
    if (high_mask(t) != 0) {
        const int right = high_shift(t, part, v) - high_place(t);
        const __m256i high = bits_now(data + high_bits_at(t, 0, v), right, mask[1]);
        __asm__ volatile("vpor %1, %0, %0" : "+x"(code) : "x"(high));
    }
    return code;
}

/* The codes of a part, stored for all columns. */
AGK_INLINE void codes_of_part(code_type t, const char *data, int part, many_columns *m)
{
    AGK_UNROLL for (int g = 0; g < 2; ++g) AGK_UNROLL for (int v = 0; v < 8; ++v)
    {
        _mm256_store_si256((__m256i *)(void *)m->codes[v][g], bits(t, data + 32 * g, 0, part, v));
    }
}

/* The scale of each of 8 rows as two words. */
AGK_INLINE __m256i small_words(code_type t, const char *scales)
{
    const __m256i words = scale_words(t, scales);
    return has_signed_scales(t) ? _mm256_srai_epi16(words, 8) : words;
}

/* Sums of the products of C of N columns from n on with 32 k. Codes are unpacked from `data` and stored, or have
 * been stored before. */
AGK_INLINE void add_part(code_type t, int C, bool unpack, const char *data, int part, int64_t N, int64_t n,
                         const char *x, const char *scales, many_columns *m)
{
    const int chain = chain_of(t), per_scale = scale_per_16(t) ? 4 : 8;
    const char *q = x + 12 * N + 32 * n, *starts = x + AGK_PACKED_WORDS_AT * N + 4 * n;
    __m256i sum[AT_ONCE][2], mask[2];
    /* or GCC keeps the address of each element in memory */
    __asm__ volatile("" : "+r"(q), "+r"(data), "+r"(scales));
    mask[0] = _mm256_set1_epi8((char)low_mask(t));
    mask[1] = _mm256_set1_epi8((char)high_mask(t));
    if (unpack) IN_ORDER(mask[0]);
    if (unpack && high_mask(t) != 0) IN_ORDER(mask[1]);
    AGK_UNROLL for (int first = 0; first < 8; first += chain)
    {
        __m256i p[AT_ONCE][2];
        AGK_UNROLL for (int v = first; v < first + chain; ++v)
        {
            __m256i w[2];
            AGK_UNROLL for (int g = 0; g < 2; ++g)
            {
                __m256i *codes = (__m256i *)(void *)m->codes[v][g];
                if (!unpack) {
                    w[g] = loaded_now(codes);
                    continue;
                }
                w[g] = code_now(t, data + 32 * g, part, v, mask);
                __asm__ volatile("vmovdqa %1, %0" : "=m"(*codes) : "x"(w[g]));
            }
            AGK_UNROLL for (int c = 0; c < C; ++c)
            {
                const char *at = q + 32 * c + 4 * v, *start = starts + 4 * (first / 4 * N + c);
                if (v == first)
                    first_fours(subtracted(t), &p[c][0], &p[c][1], w[0], w[1], at, start);
                else
                    next_fours(subtracted(t), &p[c][0], &p[c][1], w[0], w[1], at);
            }
        }
        const char *at = scales + 16 * (first / per_scale);
        const __m256i scale[2] = {small_words(t, at), small_words(t, at + 8)};
        AGK_UNROLL for (int c = 0; c < C; ++c) AGK_UNROLL for (int g = 0; g < 2; ++g)
        {
            const __m256i y = _mm256_madd_epi16(p[c][g], scale[g]);
            sum[c][g] = first == 0 ? y : _mm256_add_epi32(sum[c][g], y);
        }
    }
    AGK_UNROLL for (int c = 0; c < C; ++c)
    {
        const __m256 dx = one(x + 4 * (n + c));
        AGK_UNROLL for (int g = 0; g < 2; ++g)
        {
            float *to = m->sums[n + c][g];
            _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[c][g]), dx, _mm256_load_ps(to)));
        }
    }
}

/* 32 k of all N columns, 4 or more. */
AGK_INLINE void part_of_many(code_type t, const char *data, int part, int64_t N, const char *x, const char *scales,
                             many_columns *m)
{
    int64_t n = 0;
    if (multiplied_when_unpacked(t)) {
        switch (part) {
        case 0: add_part(t, AT_ONCE, true, data, 0, N, 0, x, scales, m); break;
        case 1: add_part(t, AT_ONCE, true, data, 1, N, 0, x, scales, m); break;
        case 2: add_part(t, AT_ONCE, true, data, 2, N, 0, x, scales, m); break;
        default: add_part(t, AT_ONCE, true, data, 3, N, 0, x, scales, m);
        }
        n = AT_ONCE;
    } else {
        switch (part) {
        case 0: codes_of_part(t, data, 0, m); break;
        case 1: codes_of_part(t, data, 1, m); break;
        case 2: codes_of_part(t, data, 2, m); break;
        default: codes_of_part(t, data, 3, m);
        }
    }
    __asm__ volatile("" : "+m"(m->codes)); /* one copy for all columns */
    for (; N - n >= AT_ONCE; n += AT_ONCE) add_part(t, AT_ONCE, false, data, 0, N, n, x, scales, m);
    switch (N - n) {
    case 3: add_part(t, 3, false, data, 0, N, n, x, scales, m); break;
    case 2: add_part(t, 2, false, data, 0, N, n, x, scales, m); break;
    case 1: add_part(t, 1, false, data, 0, N, n, x, scales, m); break;
    default: break;
    }
}

/* The minimums of 256 k, as they are subtracted. */
AGK_INLINE void minimums_of_many(code_type t, const char *a, const char *small, many_columns *m)
{
    const __m256 d[2] = {halves(a + 32), halves(a + 48)};
    const int count = scale_per_16(t) ? 16 : 8;
    for (int j = 0; j < count; ++j) AGK_UNROLL for (int g = 0; g < 2; ++g)
        {
            const __m256 minimum = _mm256_cvtepi32_ps(low_bytes(small + 16 * j + 8 * g, false));
            _mm256_store_ps(m->minimums[j][g], _mm256_mul_ps(d[g], minimum));
        }
}

/* The end of 256 k of C of N columns from n on: d, and minimums, whose columns begin at x. */
AGK_INLINE void add_block(code_type t, int C, int64_t N, int64_t n, const char *a, const char *x, const many_columns *m,
                          __m256 acc[AGK_PACKED_COLUMNS][2])
{
    const int per = scale_per_16(t) ? 2 : 1;
    const float unit = subtracted(t) ? -1.0f : 1.0f;
    __m256 less[AT_ONCE][2], d[2];
    AGK_UNROLL for (int c = 0; c < C; ++c) less[c][0] = less[c][1] = _mm256_setzero_ps();
    for (int j = 0; j < 8 * per && has_minimum(t); ++j) {
        const char *sums = x + (size_t)(j / per) * (size_t)N * AGK_PACKED_COLUMN + 4 * ((j % per + 1) * N + n);
        const __m256 minimum[2] = {_mm256_load_ps(m->minimums[j][0]), _mm256_load_ps(m->minimums[j][1])};
        AGK_UNROLL for (int c = 0; c < C; ++c)
        {
            __m256 sum = one(sums + 4 * c);
            __asm__("" : "+x"(sum)); /* one load for both */
            AGK_UNROLL for (int g = 0; g < 2; ++g) less[c][g] = _mm256_fmadd_ps(minimum[g], sum, less[c][g]);
        }
    }
    AGK_UNROLL for (int g = 0; g < 2; ++g) d[g] = _mm256_mul_ps(halves(a + 16 * g), _mm256_set1_ps(unit));
    AGK_UNROLL for (int c = 0; c < C; ++c) AGK_UNROLL for (int g = 0; g < 2; ++g)
    {
        const __m256 sum = _mm256_fmadd_ps(_mm256_load_ps(m->sums[n + c][g]), d[g], acc[n + c][g]);
        acc[n + c][g] = has_minimum(t) ? _mm256_sub_ps(sum, less[c][g]) : sum;
    }
}

/* 16 rows times N columns. */
AGK_INLINE void group_of_many(code_type t, int64_t N, const agk_mm_block *b, const char *a, int64_t rows, float *c)
{
    const size_t bytes = data_at(t) + 64 * vectors(t), unit = (size_t)N * AGK_PACKED_COLUMN;
    const int per = scale_per_16(t) ? 2 : 1;
    const char *x = b->b;
    __m256 acc[AGK_PACKED_COLUMNS][2];
    many_columns m;
    for (int64_t n = 0; n < N; ++n) acc[n][0] = acc[n][1] = _mm256_setzero_ps();
    for (int64_t k = 0; k < b->k; k += 256, a += bytes) {
        const char *first = x, *scales = a + (has_minimum(t) ? 64 : 32);
        small_scales small;
        if (t == Q2_K) small_scales_of(t, scales, &small);
        if (has_minimum(t)) minimums_of_many(t, a, t == Q2_K ? small.minimum[0] : scales + 128, &m);
        if (t == Q2_K) scales = small.scale[0];
        for (int64_t n = 0; n < N; ++n) AGK_UNROLL for (int g = 0; g < 2; ++g)
            {
                _mm256_store_ps(m.sums[n][g], _mm256_setzero_ps());
            }
        for (int i = 0; i < 8; ++i, x += unit, scales += 16 * per) {
            fetch(a + AHEAD + (size_t)i * (bytes / 8), bytes / 8);
            part_of_many(t, a + data_at(t) + (size_t)(i / 4) * 32 * vectors(t), i % 4, N, x, scales, &m);
        }
        int64_t n = 0;
        for (; N - n >= AT_ONCE; n += AT_ONCE) add_block(t, AT_ONCE, N, n, a, first, &m, acc);
        switch (N - n) {
        case 3: add_block(t, 3, N, n, a, first, &m, acc); break;
        case 2: add_block(t, 2, N, n, a, first, &m, acc); break;
        case 1: add_block(t, 1, N, n, a, first, &m, acc); break;
        default: break;
        }
    }
    for (int64_t n = 0; n < N; ++n) store_rows((float *)(void *)((char *)c + (size_t)n * b->ldc), rows, acc[n]);
}

AGK_INLINE void groups_of_many(code_type t, const agk_mm_block *b)
{
    const char *a = b->a;
    for (int64_t row = 0; row < b->rows; row += 16, a += b->lda) {
        group_of_many(t, b->cols, b, a, b->rows - row, b->c + row);
    }
}

#endif
