/* Products of packed weights with 1 to 8 columns, AVX-512 VNNI, for AMD's processors: the template for types with
 * blocks of 32 and of 256. The sums are those of kernels/avx512/mul_mat_packed.h, which was tuned on Intel's
 * processors; the differences are how weights come from memory, and q2_K from 4 columns on. A file includes the lines.h
 * of its core, then this, and names its types; used only through lines that need AGK_AMD512 or AGK_ZEN5. */
#ifndef AGK_AMD512_PACKED_H
#define AGK_AMD512_PACKED_H

/* Rotations run where products run, other shifts do not. Cycles on a Zen 5 for 64 vpdpbusd and 32 of these: nothing,
 * vpsrlw by a constant, vpsrlvd, vcvtdq2ps, vpternlogd or vpaddb 32; vpshufb, vpermb 35; vprord, vprorvd, vpsrlw by a
 * register, vpmultishiftqb, vpmullw 48; stores of 64 bytes 61. On a Zen 4, 8 columns, ns for 32 k x 16 rows from L2
 * with rotations and without: q4_K 28.1 and 24.9, q5_K 30.6 and 25.7, q6_K 29.7 and 25.7, q3_K 29.8 and 26.0. */
#define AGK_SHIFTS_APART true

#include "kernels/avx512/mul_mat_packed_codes.h"

/* On a Zen 4 (31 to 40 GB/s for two cores), K 4096, one column, as shares of a plain read of the same bytes:
 * - Each line is loaded once, in the order in which lines lie in memory: all parts of a half whose bits share a vector
 *   are multiplied together. So the hardware prefetcher follows (q6_K 0.47 without a software prefetch, in this order
 *   0.98).
 * - Software prefetches stand between products, one at a time. The compiler gathers prefetches, which depend on
 *   nothing, in bursts of up to 56 lines, and a burst waits for buffers. They go into L2, 6 KB ahead, so that the next
 *   page is known in time. In bursts, into L1 and 2 KB ahead, q4_K had 0.60, q5_K 0.63, q6_K 0.41; now 0.95, 0.94,
 *   0.98.
 * - One group of rows at a time: two streams are no faster here.
 * - The passes over a block are a loop of at most 2 KB of instructions, though what a part needs is then known at run
 *   time only. All passes of q4_K unrolled are 7 KB for 8 columns. While weights stay in L2, both take 11.7 ns for 32 k
 *   x 16 rows on a Zen 5; when they come from memory, 17.6 and 13.3: it seems that weights that stream through L2 take
 *   the instructions with them, as L1 holds nothing that L2 does not hold. (Loops of 3.5 KB: 17.0.)
 *
 * With 8 columns the products are the limit: 88 cycles for 32 k x 16 rows, of which 64 are vpdpbusd, one each cycle. */

enum { MOST_SUMS = 16 }; /* vectors of sums at a time, in addition to those of the columns: half of the registers */

/* Prefetches a line behind the product that made `sum`: since this statement claims to change `sum`, the compiler
 * cannot move it before the product. */
AGK_INLINE void ask(const char *line, __m512i *sum)
{
    __asm__ volatile(AGK_AMD_HINT " %1" : "+v"(*sum) : "m"(*(const char (*)[64])line));
}

/* The share of the lines that belongs to one of the products. */
AGK_INLINE void ask_share(const char *next, int lines, int product, int products, __m512i *sum)
{
    const int end = (product + 1) * lines / products;
    AGK_UNROLL for (int line = product * lines / products; line < end; ++line) ask(next + 64 * line, sum);
}

/* sum + the products of codes and 4 elements of a column. GCC loads these elements by an instruction of their own,
 * which takes some cycles from products on a Zen 4 and is longer. 8 columns, ns: on a Zen 4 from L2 mxfp4 27.6 -> 23.0,
 * iq3_s 24.9 -> 23.1, q5_0 24.0 -> 23.1; on a Zen 5 from memory q4_K 14.4 -> 13.0. */
AGK_INLINE __m512i add_products(__m512i sum, __m512i codes, const char *column)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*(const char (*)[4])column));
    return sum;
}

/* Whether codes are multiplied with their scales before: those of q2_K are at most 3 times 15, so the product is a
 * byte, both scales of 32 k share a sum, and d is left for the end of a block. From memory 8 columns 1.12, 4 columns
 * 1.06 times as fast; without d for each 32 k once more 1.05. The same for q3_K (two look-ups for each vector) was
 * slower: 251 instead of 279 GOP/s. */
AGK_INLINE bool scaled_before(code_type t, int N)
{
    return t == Q2_K && N >= 4;
}

/* For 16 k of q2_K: 0, 1, 2 and 3 times the scale of each row. */
AGK_INLINE __m512i multiples_of(const char *block, int j, int h)
{
    const __m128i scale = _mm_and_si128(bytes(block + 64 + 16 * (2 * j + h)), _mm_set1_epi8(15));
    return _mm512_mullo_epi32(_mm512_cvtepu8_epi32(scale), _mm512_set1_epi32(0x03020100));
}

/* Codes of q2_K times the scales of their rows. */
AGK_INLINE __m512i scaled(__m512i codes, __m512i multiples)
{
    const __m512i row = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c));
    return _mm512_shuffle_epi8(multiples, _mm512_or_si512(codes, row));
}

/* Whether scales are powers of two. vscalefps has a pipe of its own on a Zen 4, so sums are multiplied by the scale of
 * the column alone, and no scale has to be made of an exponent. ns from L2: 1 column 8.8 -> 5.2, 2 columns 9.5 -> 7.4,
 * 4 14.3 -> 11.2, 8 22.8 -> 20.4. The same bits. */
AGK_INLINE bool powers_of_two(code_type t)
{
    return t == MXFP4;
}

/* How many parts of a half (of 32 k) are multiplied together: those that share vectors, as far as there are
 * registers and as it pays (lines.h). */
AGK_INLINE int parts_at_once(code_type t, int N)
{
    if (!of_256(t) || nibbles_of_256(t)) return 1;
    int parts = agk_one_part(t, N) ? 1 : t == Q4_K || t == Q5_K ? 2 : 4;
    while (parts > 1 && parts * N * (scale_per_16(t) && !scaled_before(t, N) ? 2 : 1) > MOST_SUMS) parts /= 2;
    return parts;
}

/* `count` parts of N columns, which lie at x one after the other; meanwhile `lines` from `next` on are prefetched. Sums
 * of codes that were scaled before are added to `unscaled`, which has to be multiplied by d. */
AGK_INLINE void parts(code_type t, int N, int count, const char *block, int half, int part, __m512 d, __m512 m,
                      const char *x, const char *next, int lines, __m512 acc[AGK_PACKED_COLUMNS],
                      __m512 unscaled[AGK_PACKED_COLUMNS])
{
    const size_t unit = (size_t)N * AGK_PACKED_COLUMN;
    const bool before = scaled_before(t, N);
    const int scales = scale_per_16(t) && !before ? 2 : 1, minimums = scale_per_16(t) ? 2 : 1;
    __m512i s[4][2][AGK_PACKED_COLUMNS], multiples[4][2];
    if (before) AGK_UNROLL for (int p = 0; p < count; ++p) AGK_UNROLL for (int h = 0; h < 2; ++h)
        {
            multiples[p][h] = multiples_of(block, 4 * half + part + p, h);
        }
    AGK_UNROLL for (int p = 0; p < count; ++p)
    {
        AGK_UNROLL for (int h = 0; h < scales; ++h)
        {
            const char *start = x + (size_t)p * unit + 4 * (h + 1) * N;
            AGK_UNROLL for (int n = 0; n < N; ++n) s[p][h][n] =
                has_minimum(t) ? _mm512_setzero_si512() : four(start + 4 * n);
        }
    }
    AGK_UNROLL for (int v = 0; v < 8; ++v)
    {
        AGK_UNROLL for (int p = 0; p < count; ++p)
        {
            const int h = scales == 2 ? v / 4 : 0;
            const char *q = x + (size_t)p * unit + 12 * N + 4 * v;
            __m512i w = code(t, block + data_at(t), half, part, count > 1, p, v);
            if (before) w = scaled(w, multiples[p][v / 4]);
            AGK_UNROLL for (int n = 0; n < N; ++n) s[p][h][n] = add_products(s[p][h][n], w, q + 32 * n);
            ask_share(next, lines, v * count + p, 8 * count, &s[p][h][0]);
        }
    }
    AGK_UNROLL for (int p = 0; p < count; ++p, x += unit)
    {
        __m512 scale[2], minimum[2];
        scales_of(t, block, 4 * half + part + p, d, m, scale, minimum);
        const __m512 power = powers_of_two(t) ? exponents_of_e8m0(bytes(block)) : d;
        AGK_UNROLL for (int n = 0; n < N; ++n)
        {
            const __m512 dx = one(x + 4 * n);
            if (before) unscaled[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[p][0][n]), dx, unscaled[n]);
            if (!before && scales == 1) {
                const __m512 sum = _mm512_cvtepi32_ps(s[p][0][n]);
                acc[n] = powers_of_two(t) ? _mm512_fmadd_ps(_mm512_scalef_ps(sum, power), dx, acc[n])
                                          : _mm512_fmadd_ps(sum, _mm512_mul_ps(scale[0], dx), acc[n]);
            }
            if (!before && scales == 2) { /* three products, where two scales times dx would take four */
                const __m512 first = _mm512_mul_ps(_mm512_cvtepi32_ps(s[p][0][n]), scale[0]);
                acc[n] = _mm512_fmadd_ps(_mm512_fmadd_ps(_mm512_cvtepi32_ps(s[p][1][n]), scale[1], first), dx, acc[n]);
            }
            if (has_minimum(t)) AGK_UNROLL for (int h = 0; h < minimums; ++h)
                {
                    acc[n] = _mm512_fmadd_ps(minimum[h], one(x + 4 * ((h + 1) * N + n)), acc[n]);
                }
        }
    }
}

/* 16 rows, of which `rows` are stored. */
AGK_INLINE void group(code_type t, int N, const agk_mm_block *b, const char *a, __mmask16 rows, float *c)
{
    const int count = parts_at_once(t, N), passes = of_256(t) ? 8 / count : 1;
    const size_t bytes_of_block = data_at(t) + 64 * vectors(t), share = bytes_of_block / (size_t)passes;
    const int lines = (int)((share + 63) / 64);
    const size_t far = agk_packed_ahead(t, N);
    const char *x = b->b;
    __m512 acc[AGK_PACKED_COLUMNS];
    AGK_UNROLL for (int n = 0; n < N; ++n) acc[n] = _mm512_setzero_ps();
    for (int64_t k = 0; k < b->k; k += of_256(t) ? 256 : 32, a += bytes_of_block) {
        __m512 d, m;
        scales_of_block(t, a, &d, &m);
        __m512 unscaled[AGK_PACKED_COLUMNS]; /* sums that lack d */
        AGK_UNROLL for (int n = 0; n < N; ++n) unscaled[n] = _mm512_setzero_ps();
        const char *next = a + far;
        /* not unrolled: see above */
        _Pragma("GCC unroll 1") for (int i = 0; i < passes;
                                     ++i, x += (size_t)(count * N) * AGK_PACKED_COLUMN, next += share)
        {
            const int first = i * count; /* of 8 parts; the compiler sees that it is even, or a multiple of 4 */
            parts(t, N, count, a, first >> 2, first & 3, d, m, x, next, lines, acc, unscaled);
        }
        if (!scaled_before(t, N)) continue;
        AGK_UNROLL for (int n = 0; n < N; ++n) acc[n] = _mm512_fmadd_ps(unscaled[n], d, acc[n]);
    }
    AGK_UNROLL for (int n = 0; n < N; ++n) _mm512_mask_storeu_ps((char *)c + (size_t)n * b->ldc, rows, acc[n]);
}

AGK_INLINE void groups(code_type t, int N, const agk_mm_block *b)
{
    const char *a = b->a;
    for (int64_t row = 0; row < b->rows; row += 16, a += b->lda) {
        group(t, N, b, a, rows_of_group(b->rows - row), b->c + row);
    }
}

#define AGK_PACKED(name, t, ...) AGK_FOR_COLUMNS(AGK_AMD(mm_packed_##name), t)

#endif
