/* Products of packed weights (mul_mat_packed.h) with 1 to 8 columns on 256-bit vectors: a group of 16 rows is two
 * vectors.
 *
 * 32 k of 16 rows are unpacked once for all columns and stay in L1 while up to 4 columns at a time, broadcast four by
 * four, are multiplied. A file defines NARROW_VNNI as 0 or 1 and NARROW_NAME(type), includes this, and ends with
 * AGK_NARROW_KERNELS. Without vpdpbusd sums have 16 bits, and codes of 8 bits are words: 4 instructions for 32
 * products, where two nibbles took 4.5 and as many loads again. Not here: on AVX2 most types with one column
 * (mul_mat_packed_narrow_one.h, _levels.h) and K types with 4 to 8 (_many.h), AVX-512
 * (kernels/avx512/mul_mat_packed.h). */
#ifndef AGK_VEC_PACKED_NARROW_H
#define AGK_VEC_PACKED_NARROW_H

#include "table/kernel_types.h"

#include "mul_mat_packed_narrow_codes.h"

/* How many bytes of the stream of weights to prefetch ahead; columns. Processors without vpdpbusd are AMD's until
 * Zen 3 more often than Intel's; for them lines are prefetched into L2 from far ahead. One column on a Zen 4, GB/s
 * of 37 to 42, into L1 2 KB ahead and into L2 6 KB ahead: q8_0 28, 40; q4_0 30, 37; q4_K 31, 35; q5_K 30, 35; q6_K
 * 25, 31. */
enum { AHEAD = NARROW_VNNI ? 2048 : 6144, AT_ONCE = 4 };

/* The order that the compiler chooses needs more values at a time than there are registers. */
#define IN_ORDER(x) __asm__ volatile("" : "+x"(x))

AGK_INLINE void fetch(const char *from, size_t bytes)
{
    AGK_UNROLL for (size_t line = 0; line < bytes; line += 64)
    {
        if (NARROW_VNNI)
            _mm_prefetch(from + line, _MM_HINT_T0);
        else
            _mm_prefetch(from + line, _MM_HINT_T1);
    }
}

/* The sum of two products of these codes may exceed 16 bits, so they become words: first the even ones, then the odd
 * ones. */
AGK_INLINE bool wide_codes(code_type t)
{
    return !NARROW_VNNI && largest_code(t) > 127;
}

/* How many products of fours have a sum of 16 bits: a lane adds two products of each, 2 * 8 * 128 * 15 = 30720. */
AGK_INLINE int fours_of(code_type t)
{
    const int largest = largest_code(t);
    return largest <= 15 ? 8 : largest <= 31 ? 4 : largest <= 63 ? 2 : 1;
}

AGK_INLINE __m256i four(const char *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm256_set1_epi32(x);
}

AGK_INLINE __m256 one(const char *p)
{
    return _mm256_castsi256_ps(four(p));
}

#if !NARROW_VNNI
#include "mul_mat_packed_narrow_one.h"

#include "mul_mat_packed_narrow_levels.h"

#include "mul_mat_packed_narrow_many.h"

/* Sums of 32 words of C columns, 32 bytes apart at q, with 16 rows; of each four the first and third, then the
 * others. */
AGK_INLINE void words_of(int C, __m256i w[2][8][2], const char *q, __m256i s[AT_ONCE][2])
{
    _Alignas(32) char words[AT_ONCE][2][32];
    AGK_UNROLL for (int c = 0; c < C; ++c)
    {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(q + 32 * c));
        const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8);
        _mm256_store_si256((__m256i *)(void *)words[c][0], even);
        _mm256_store_si256((__m256i *)(void *)words[c][1], _mm256_srai_epi16(x, 8));
    }
    __asm__ volatile("" : "+m"(words)); /* broadcast out of memory, not shifted out of registers */
    AGK_UNROLL for (int v = 0; v < 8; ++v) AGK_UNROLL for (int odd = 0; odd < 2; ++odd)
    {
        __m256i both[2] = {w[odd][v][0], w[odd][v][1]};
        AGK_UNROLL for (int g = 0; g < 2; ++g) IN_ORDER(both[g]); /* one load for all columns */
        AGK_UNROLL for (int c = 0; c < C; ++c)
        {
            const __m256i x = four(words[c][odd] + 4 * v);
            AGK_UNROLL for (int g = 0; g < 2; ++g)
            {
                const __m256i y = _mm256_madd_epi16(both[g], x);
                s[c][g] = v == 0 && odd == 0 ? y : _mm256_add_epi32(s[c][g], y);
                IN_ORDER(s[c][g]);
            }
        }
    }
}
#endif

/* Sums of fours first .. last - 1 of C columns, 32 bytes apart at q, with 16 rows. */
AGK_INLINE void sums_of(code_type t, int C, int first, int last, __m256i w[2][8][2], const char *q,
                        __m256i s[AT_ONCE][2])
{
#if NARROW_VNNI
    (void)t;
    AGK_UNROLL for (int c = 0; c < C; ++c) s[c][0] = s[c][1] = _mm256_setzero_si256();
    AGK_UNROLL for (int v = first; v < last; ++v) AGK_UNROLL for (int c = 0; c < C; ++c)
    {
        const __m256i x = four(q + 32 * c + 4 * v);
        AGK_UNROLL for (int g = 0; g < 2; ++g)
        {
            s[c][g] = _mm256_dpbusd_avx_epi32(s[c][g], w[0][v][g], x);
            IN_ORDER(s[c][g]);
        }
    }
#else
    const int fours = fours_of(t);
    if (wide_codes(t)) {
        words_of(C, w, q, s);
        return;
    }
    AGK_UNROLL for (int v = first; v < last; v += fours)
    {
        const int end = v + fours < last ? v + fours : last;
        __m256i p[AT_ONCE][2];
        AGK_UNROLL for (int u = v; u < end; ++u)
        {
            __m256i both[2] = {w[0][u][0], w[0][u][1]};
            AGK_UNROLL for (int g = 0; g < 2; ++g) IN_ORDER(both[g]);
            AGK_UNROLL for (int c = 0; c < C; ++c)
            {
                const __m256i x = four(q + 32 * c + 4 * u);
                AGK_UNROLL for (int g = 0; g < 2; ++g)
                {
                    const __m256i y = _mm256_maddubs_epi16(both[g], x);
                    p[c][g] = u == v ? y : _mm256_add_epi16(p[c][g], y);
                    IN_ORDER(p[c][g]);
                }
            }
        }
        AGK_UNROLL for (int c = 0; c < C; ++c) AGK_UNROLL for (int g = 0; g < 2; ++g)
        {
            const __m256i y = _mm256_madd_epi16(p[c][g], _mm256_set1_epi16(1));
            s[c][g] = v == first ? y : _mm256_add_epi32(s[c][g], y);
        }
    }
#endif
}

/* What an offset of the codes adds too much to the sum of column n of N, part h of a sub-block, is taken off. */
AGK_INLINE __m256 without_offset(code_type t, __m256i sum, const char *x, int64_t N, int64_t n, int h)
{
    return _mm256_cvtepi32_ps(has_minimum(t) ? sum : _mm256_add_epi32(sum, four(x + 4 * ((h + 1) * N + n))));
}

/* C of N columns from n on: their sums times the scales. Where there are two scales, the column's own scale multiplies
 * both sums at once: three products instead of four. */
AGK_INLINE void columns(code_type t, int C, int64_t N, int64_t n, const char *x, __m256i w[2][8][2], __m256 scale[2][2],
                        __m256 minimum[2][2], __m256 acc[AGK_PACKED_COLUMNS][2])
{
    const bool two = scale_per_16(t);
    const char *q = x + 12 * N + 32 * n;
    __m256 first[AT_ONCE][2];
    __m256i s[AT_ONCE][2];
    if (two) {
        sums_of(t, C, 0, 4, w, q, s);
        AGK_UNROLL for (int c = 0; c < C; ++c) AGK_UNROLL for (int g = 0; g < 2; ++g)
        {
            first[c][g] = _mm256_mul_ps(without_offset(t, s[c][g], x, N, n + c, 0), scale[g][0]);
        }
    }
    sums_of(t, C, two ? 4 : 0, 8, w, q, s);
    AGK_UNROLL for (int c = 0; c < C; ++c)
    {
        const __m256 dx = one(x + 4 * (n + c));
        AGK_UNROLL for (int g = 0; g < 2; ++g)
        {
            const __m256 sum = without_offset(t, s[c][g], x, N, n + c, two ? 1 : 0);
            __m256 *to = &acc[n + c][g];
            if (two)
                *to = _mm256_fmadd_ps(_mm256_fmadd_ps(sum, scale[g][1], first[c][g]), dx, *to);
            else
                *to = _mm256_fmadd_ps(sum, _mm256_mul_ps(scale[g][0], dx), *to);
            if (has_minimum(t)) *to = _mm256_fmadd_ps(minimum[g][0], one(x + 4 * (N + n + c)), *to);
            if (has_minimum(t) && two) *to = _mm256_fmadd_ps(minimum[g][1], one(x + 4 * (2 * N + n + c)), *to);
        }
    }
}

/* The codes of a sub-block, 32 k. */
AGK_INLINE void codes(code_type t, const char *block, int64_t half, int part, __m256i w[2][8][2])
{
    AGK_UNROLL for (int g = 0; g < 2; ++g)
    {
        __m256i q[8];
        codes_of_8(t, block, g, half, part, q);
        AGK_UNROLL for (int v = 0; v < 8; ++v)
        {
            w[0][v][g] = q[v];
            if (!wide_codes(t)) continue;
            w[0][v][g] = _mm256_and_si256(q[v], _mm256_set1_epi16(255));
            w[1][v][g] = _mm256_srli_epi16(q[v], 8);
        }
    }
}

/* A sub-block of N columns that lie at x. With one column its codes need not be stored. */
AGK_INLINE void sub_block(code_type t, bool single, int64_t N, const char *block, int64_t half, int part,
                          const __m256 d[2], const __m256 m[2], const char *x, __m256 acc[AGK_PACKED_COLUMNS][2])
{
    __m256i w[2][8][2];
    __m256 scale[2][2], minimum[2][2];
    if (single || !of_256(t)) {
        codes(t, block, half, part, w);
    } else {
        switch (part) {
        case 0: codes(t, block, half, 0, w); break;
        case 1: codes(t, block, half, 1, w); break;
        case 2: codes(t, block, half, 2, w); break;
        default: codes(t, block, half, 3, w);
        }
    }
    AGK_UNROLL for (int g = 0; g < 2; ++g)
    {
        const size_t bytes = has_minimum(t) ? 64 : of_256(t) ? 32 : 0; /* of the scales of the block */
        scales_of(t, block + bytes + 8 * g, 4 * half + part, d[g], m[g], scale[g], minimum[g]);
    }
    if (single) {
        columns(t, 1, 1, 0, x, w, scale, minimum, acc);
        return;
    }
    /* One copy in memory for all columns; GCC made another one for those after the last 4. With AVX2, 3 and 8 columns,
     * cycles for 32 k on a Zen 5: q8_0 116, 216 -> 99, 209; iq4_nl 119, 219 -> 99, 213. Others became slower, such as
     * q4_K with 8 columns (115 -> 129), and with AVX-VNNI q4_0 with 2 (34 -> 41). */
    if (!NARROW_VNNI && (wide_codes(t) || (!of_256(t) && has_levels(t)))) {
        __asm__ volatile("" : "+m"(w[0]));
        if (wide_codes(t)) __asm__ volatile("" : "+m"(w[1]));
    }
    int64_t n = 0;
    for (; N - n >= AT_ONCE; n += AT_ONCE) columns(t, AT_ONCE, N, n, x, w, scale, minimum, acc);
    switch (N - n) {
    case 3: columns(t, 3, N, n, x, w, scale, minimum, acc); break;
    case 2: columns(t, 2, N, n, x, w, scale, minimum, acc); break;
    case 1: columns(t, 1, N, n, x, w, scale, minimum, acc); break;
    default: break;
    }
}

AGK_INLINE void group(code_type t, bool single, int64_t N, const agk_mm_block *b, const char *a, int64_t rows, float *c)
{
    const size_t bytes_of_block = data_at(t) + 64 * vectors(t), unit = (size_t)N * AGK_PACKED_COLUMN;
    const int parts = of_256(t) ? 4 : 1, halves_of_block = of_256(t) ? 2 : 1;
    const size_t ahead = bytes_of_block / (size_t)(parts * halves_of_block);
    const char *x = b->b;
    __m256 acc[AGK_PACKED_COLUMNS][2];
    for (int64_t n = 0; n < N; ++n) acc[n][0] = acc[n][1] = _mm256_setzero_ps();
    for (int64_t k = 0; k < b->k; k += of_256(t) ? 256 : 32, a += bytes_of_block) {
        __m256 d[2], m[2];
        AGK_UNROLL for (int g = 0; g < 2; ++g)
        {
            const float too_large = packed_types[t].unit;
            d[g] = t == MXFP4 ? half_of_e8m0(a + 8 * g) : halves(a + 16 * g);
            if (too_large != 1.0f) d[g] = _mm256_mul_ps(d[g], _mm256_set1_ps(1.0f / too_large));
            m[g] = has_minimum(t) ? halves(a + 32 + 16 * g) : d[g];
            /* the minimum of types of 256 is subtracted */
            if (of_256(t)) m[g] = _mm256_sub_ps(_mm256_setzero_ps(), m[g]);
        }
        for (int64_t half = 0; half < halves_of_block; ++half) {
            if (single) {
                AGK_UNROLL for (int part = 0; part < parts; ++part, x += unit)
                {
                    fetch(a + AHEAD + (size_t)(half * parts + part) * ahead, ahead);
                    sub_block(t, true, 1, a, half, part, d, m, x, acc);
                }
            } else {
                for (int part = 0; part < parts; ++part, x += unit) {
                    fetch(a + AHEAD + (size_t)(half * parts + part) * ahead, ahead);
                    sub_block(t, false, N, a, half, part, d, m, x, acc);
                }
            }
        }
    }
    const __m256i at = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    for (int64_t n = 0; n < N; ++n) AGK_UNROLL for (int g = 0; g < 2; ++g)
        {
            float *to = (float *)(void *)((char *)(c + 8 * g) + (size_t)n * b->ldc);
            _mm256_maskstore_ps(to, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(rows - 8 * g)), at), acc[n][g]);
        }
}

AGK_INLINE void groups(code_type t, bool single, const agk_mm_block *b)
{
    const char *a = b->a;
    for (int64_t row = 0; row < b->rows; row += 16, a += b->lda) {
        group(t, single, single ? 1 : b->cols, b, a, b->rows - row < 16 ? b->rows - row : 16, b->c + row);
    }
}

AGK_INLINE void groups_of_single(code_type t, const agk_mm_block *b)
{
#if !NARROW_VNNI
    if (served_alone(t)) {
        groups_of_one(t, b);
        return;
    }
    if (nibbles_with_levels(t)) {
        groups_of_levels(t, b);
        return;
    }
#endif
    groups(t, true, b);
}

AGK_INLINE void groups_of_several(code_type t, const agk_mm_block *b)
{
#if !NARROW_VNNI
    if (served_many(t, b->cols)) {
        groups_of_many(t, b);
        return;
    }
#endif
    groups(t, false, b);
}

#define AGK_NARROW(name, t, ...) \
    void NARROW_NAME(name)(const agk_mm_block *b) \
    { \
        if (b->cols == 1) \
            groups_of_single(t, b); \
        else \
            groups_of_several(t, b); \
    }
#define AGK_NARROW_KERNELS AGK_MM_QUANTIZED(AGK_NARROW, )

#endif
