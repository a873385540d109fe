/* Products of packed weights with one column on AVX2 without vpdpbusd, for types whose elements are nibbles that a
 * table turns into codes: iq4, iq3, mxfp4, nvfp4. Included by mul_mat_packed_narrow.h behind the functions that
 * both use. Not here: other types (mul_mat_packed_narrow_one.h).
 *
 * Elements are multiplied as soon as they are unpacked, and the loop has one part of 32 k, so little lies in memory
 * and the code is short. The sizes of the column's elements, by which iq4 is multiplied, are made once for 32 k. */
#ifndef AGK_VEC_PACKED_NARROW_LEVELS_H
#define AGK_VEC_PACKED_NARROW_LEVELS_H

#include "mul_mat_packed_narrow_codes.h"

AGK_INLINE bool nibbles_with_levels(code_type t)
{
    return has_levels(t) && (!of_256(t) || nibbles_of_256(t));
}

/* Sums of 32 k of 16 rows, those of the first (the last) 16 k times scale[0] ([1]), which are words. */
AGK_INLINE void levels_of_part(code_type t, const char *qs, const char *q, __m256i scale[2][2], __m256i sum[2][2])
{
    const bool with_sign = wide_codes(t);
    const int most = with_sign ? 1 : fours_of(t) < 4 ? fours_of(t) : 4;
    const __m256i nibble = _mm256_set1_epi8(15);
    _Alignas(32) char sizes[32];
    if (with_sign) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)q);
        _mm256_store_si256((__m256i *)(void *)sizes, _mm256_abs_epi8(x)); /* -128 becomes 128 */
        __asm__ volatile("" : "+m"(sizes));                               /* broadcast out of memory */
    }
    __m256i words[2][2];
    AGK_UNROLL for (int v = 0; v < 4; ++v)
    {
        __m256i x[2], size[2];
        AGK_UNROLL for (int i = 0; i < 2; ++i)
        {
            x[i] = four(q + 16 * i + 4 * v);
            size[i] = with_sign ? four(sizes + 16 * i + 4 * v) : x[i];
        }
        AGK_UNROLL for (int g = 0; g < 2; ++g)
        {
            __m256i both = vector(qs + 32 * g, v);
            IN_ORDER(both); /* one load for both nibbles */
            AGK_UNROLL for (int i = 0; i < 2; ++i)
            {
                const __m256i bits = _mm256_and_si256(i == 0 ? both : _mm256_srli_epi16(both, 4), nibble);
                const __m256i w = levels(t, with_sign, bits);
                const __m256i p = with_sign ? _mm256_maddubs_epi16(size[i], _mm256_sign_epi8(w, x[i]))
                                            : _mm256_maddubs_epi16(w, x[i]);
                words[i][g] = v % most == 0 ? p : _mm256_add_epi16(words[i][g], p);
                IN_ORDER(words[i][g]);
                if (v % most != most - 1) continue;
                const __m256i s = _mm256_madd_epi16(words[i][g], scale[i][g]);
                sum[i][g] = v < most ? s : _mm256_add_epi32(sum[i][g], s);
                IN_ORDER(sum[i][g]);
            }
        }
    }
}

/* A block of 256. */
AGK_INLINE void levels_of_256(code_type t, const char *a, const char *x, size_t ahead, __m256 acc[2])
{
    __m256 inner[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    small_scales small;
    if (has_nibble_scales(t)) small_scales_of(t, a + 32, &small);
    const char *scales = has_nibble_scales(t) ? small.scale[0] : a + 32;
    for (int part = 0; part < 8; ++part, x += UNIT_OF_ONE) {
        fetch(a + AHEAD + (size_t)part * ahead, ahead);
        __m256i scale[2][2], sum[2][2];
        AGK_UNROLL for (int g = 0; g < 2; ++g)
        {
            const __m256i words = scale_words(t, scales + 16 * part + 8 * g);
            scale[0][g] = scale[1][g] = has_signed_scales(t) ? _mm256_srai_epi16(words, 8) : words;
        }
        levels_of_part(t, a + data_at(t) + 256 * part, x + 12, scale, sum);
        AGK_UNROLL for (int g = 0; g < 2; ++g)
        {
            __m256i s = _mm256_add_epi32(sum[0][g], sum[1][g]);
            if (!wide_codes(t)) { /* what the offset of the codes adds too much */
                s = _mm256_add_epi32(s, _mm256_mullo_epi32(_mm256_srli_epi32(scale[0][g], 16), four(x + 4)));
            }
            inner[g] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s), one(x), inner[g]);
        }
    }
    AGK_UNROLL for (int g = 0; g < 2; ++g)
    {
        const __m256 unit = _mm256_set1_ps(1.0f / packed_types[t].unit);
        acc[g] = _mm256_fmadd_ps(inner[g], _mm256_mul_ps(halves(a + 16 * g), unit), acc[g]);
    }
}

/* A block of 32. */
AGK_INLINE void levels_of_32(code_type t, const char *a, const char *x, __m256 acc[2])
{
    const __m256i add = _mm256_set1_epi16(1);
    __m256i ones[2][2] = {{add, add}, {add, add}}, sum[2][2];
    levels_of_part(t, a + data_at(t), x + 12, ones, sum);
    const __m256 dx = one(x);
    AGK_UNROLL for (int g = 0; g < 2; ++g)
    {
        if (t == NVFP4) {
            const __m256i first = _mm256_add_epi32(sum[0][g], four(x + 4)),
                          last = _mm256_add_epi32(sum[1][g], four(x + 8));
            const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(first), half_of_e4m3(a + 8 * g));
            acc[g] = _mm256_fmadd_ps(_mm256_fmadd_ps(_mm256_cvtepi32_ps(last), half_of_e4m3(a + 16 + 8 * g), product),
                                     dx, acc[g]);
            continue;
        }
        const __m256 d = t == MXFP4 ? half_of_e8m0(a + 8 * g) : halves(a + 16 * g);
        __m256i s = _mm256_add_epi32(sum[0][g], sum[1][g]);
        if (!wide_codes(t)) s = _mm256_add_epi32(s, four(x + 4));
        acc[g] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s), _mm256_mul_ps(d, dx), acc[g]);
    }
}

AGK_INLINE void groups_of_levels(code_type t, const agk_mm_block *b)
{
    const size_t bytes = data_at(t) + 64 * vectors(t);
    const char *group = b->a;
    for (int64_t row = 0; row < b->rows; row += 16, group += b->lda) {
        const char *a = group, *x = b->b;
        __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        for (int64_t k = 0; k < b->k; k += of_256(t) ? 256 : 32, a += bytes) {
            if (of_256(t)) {
                levels_of_256(t, a, x, bytes / 8, acc);
                x += 8 * UNIT_OF_ONE;
                continue;
            }
            fetch(a + AHEAD, bytes);
            levels_of_32(t, a, x, acc);
            x += UNIT_OF_ONE;
        }
        store_rows(b->c + row, b->rows - row, acc);
    }
}

#endif
