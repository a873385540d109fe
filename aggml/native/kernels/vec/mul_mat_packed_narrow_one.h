/* Products of packed weights of blocks of 256 with one column on AVX2 without vpdpbusd. Included by
 * mul_mat_packed_narrow.h. Not here: nibbles that a table turns into codes (mul_mat_packed_narrow_levels.h).
 *
 * Products are bound by the number of vector instructions, of which 3 run in a cycle. Codes of parts 1 and 3, which
 * lie 2 bits higher, are not shifted down: they are 4 times as large, and so is their sum, which is divided at the
 * end. Scales multiply sums of 16 bits as integers, by the vpmaddwd that adds them up anyway. */
#ifndef AGK_VEC_PACKED_NARROW_ONE_H
#define AGK_VEC_PACKED_NARROW_ONE_H

#include "mul_mat_packed_narrow_codes.h"

enum { UNIT_OF_ONE = AGK_PACKED_COLUMN }; /* bytes of 32 k of one column */

/* Elements are magnitudes out of a table, and the high bit is their sign, which is moved to the column. */
AGK_INLINE bool has_magnitudes(code_type t)
{
    return packed_types[t].levels == LEVELS_IQ2;
}

/* The lower and the upper nibbles of the same bytes belong to different parts: those of a pair. */
AGK_INLINE bool has_nibbles(code_type t)
{
    return t == Q4_K || t == Q5_K || t == Q6_K;
}

/* On a Zen 4, before and after, cycles for 32 k of 16 rows from L2 (vector instructions): q3_K 45.5, 33.4 (132, 115);
 * q5_K 40, 36 (124, 116); q6_K 43.5, 41.4 (130, 128); q4_K 25.8, 21.6 (76, 68); q2_K 33.8, 25 (102, 75); iq2_xs
 * 58.8, 40.6 (166, 118); iq2_xxs 52.6, 39.8; iq1_m 51.7, 35.5 (148, 101); iq1_s 36.1, 22.8 (117, 70); tq1_0 21.4,
 * 17.4 (68, 60). */
AGK_INLINE bool served_alone(code_type t)
{
    return bits_of(t) == Q2_K || bits_of(t) == Q3_K || has_nibbles(t);
}

AGK_INLINE __m256i both_lanes(const void *p)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
}

/* Codes of parts 1 and 3 stay where they are, 4 times as large as those of parts 0 and 2. */
AGK_INLINE bool has_large_parts(code_type t)
{
    return !has_magnitudes(t) && !has_nibbles(t);
}

/* -1 for nibbles whose bit p is set, else 1. */
AGK_INLINE __m256i signs_by_bit(int p)
{
    char x[16];
    AGK_UNROLL for (int i = 0; i < 16; ++i) x[i] = i >> p & 1 ? -1 : 1;
    return both_lanes(x);
}

/* Magnitudes of iq2 by the lower (upper) two bits of a nibble. */
AGK_INLINE __m256i magnitudes(bool upper)
{
    static const char lower_bits[16] = {8, 25, 43, 0, 8, 25, 43, 0, 8, 25, 43, 0, 8, 25, 43, 0};
    static const char upper_bits[16] = {8, 8, 8, 8, 25, 25, 25, 25, 43, 43, 43, 43, 0, 0, 0, 0};
    return both_lanes(upper ? upper_bits : lower_bits);
}

/* What the scales of a block become before they are used: a byte for each row of each sub-block. */
typedef struct small_scales {
    _Alignas(32) char scale[16][16], minimum[16][16];
} small_scales;

AGK_INLINE void small_scales_of(code_type t, const char *bytes, small_scales *to)
{
    const __m256i nibble = _mm256_set1_epi8(15), even = _mm256_set1_epi8(30), one_more = _mm256_set1_epi8(1);
    const int n = t == Q2_K ? 16 : has_nibble_scales(t) ? (scale_per_16(t) ? 8 : 4) : 0;
    AGK_UNROLL for (int i = 0; i < n; i += 2)
    {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(bytes + 16 * i));
        if (t == Q2_K) {
            _mm256_store_si256((__m256i *)(void *)to->scale[i], _mm256_and_si256(x, nibble));
            _mm256_store_si256((__m256i *)(void *)to->minimum[i], _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble));
        } else { /* 2 s + 1 */
            const __m256i low = _mm256_or_si256(_mm256_and_si256(_mm256_add_epi8(x, x), even), one_more);
            const __m256i high = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(x, 3), even), one_more);
            _mm256_store_si256((__m256i *)(void *)to->scale[2 * i], _mm256_permute2x128_si256(low, high, 0x20));
            _mm256_store_si256((__m256i *)(void *)to->scale[2 * i + 2], _mm256_permute2x128_si256(low, high, 0x31));
        }
    }
}

/* Of iq1_s, what an eighth is multiplied by: the scale of each row, with the sign that the third bit says. */
AGK_INLINE void eighths_of(const char *third, small_scales *to)
{
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    const __m256i at = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3,
                                        3, 3, 3, 3, 3);
    AGK_UNROLL for (int i = 0; i < 8; i += 2)
    {
        const __m256i rows = _mm256_and_si256(_mm256_shuffle_epi8(four(third + 2 * i), at), bit);
        const __m256i less = _mm256_cmpeq_epi8(rows, bit);
        const __m256i s = _mm256_load_si256((const __m256i *)(const void *)to->scale[i]);
        const __m256i eighths = _mm256_sub_epi8(_mm256_xor_si256(s, less), less);
        _mm256_store_si256((__m256i *)(void *)to->minimum[i], eighths);
    }
}

/* A half of a block of 16 rows. */
typedef struct half_block {
    const char *low, *high, *x, *scale, *minimum;
    const char *third, *eights; /* of iq1_m: third bits, sums of 8 elements of the column */
} half_block;

/* Sums of 8 elements of the column, as words: in each 32 bytes those of a part, two at byte 0, two at byte 16. */
AGK_INLINE void eights_of(const char *x, char to[4][32])
{
    const __m256i both = _mm256_set1_epi64x(0x09080100);
    AGK_UNROLL for (int p = 0; p < 4; ++p)
    {
        const __m256i q = _mm256_loadu_si256((const __m256i *)(const void *)(x + UNIT_OF_ONE * p + 12));
        const __m256i two = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
        const __m256i each = _mm256_madd_epi16(two, _mm256_set1_epi16(1));
        const __m256i eight = _mm256_add_epi32(each, _mm256_srli_epi64(each, 32));
        _mm256_store_si256((__m256i *)(void *)to[p], _mm256_shuffle_epi8(eight, both));
    }
}

/* Of iq1_m, two sums of 8 elements with the signs that the third bits of 8 rows say. */
AGK_INLINE __m256i signed_eights(const half_block *b, int p, int h, int g)
{
    const __m256i first = _mm256_setr_epi32(0x10001, 0x20002, 0x40004, 0x80008, 0x100010, 0x200020, 0x400040, 0x800080);
    const __m256i row = g == 0 ? first : _mm256_slli_epi16(first, 8);
    const __m256i less = _mm256_cmpeq_epi16(_mm256_and_si256(four(b->third + 8 * p + 4 * h), row), row);
    return _mm256_sign_epi16(four(b->eights + 32 * p + 16 * h), _mm256_or_si256(less, _mm256_set1_epi16(1)));
}

/* Of 8 rows, the scale of each as two words; signed scales are the upper bytes of the words, 256 times too large. */
AGK_INLINE __m256i scale_words(code_type t, const char *scale)
{
    static const char at[2][32] = {{0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1,
                                    4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7, -1},
                                   {-1, 0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3,
                                    -1, 4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7}};
    long long rows;
    memcpy(&rows, scale, sizeof rows);
    return _mm256_shuffle_epi8(_mm256_set1_epi64x(rows),
                               _mm256_loadu_si256((const __m256i *)(const void *)at[has_signed_scales(t)]));
}

/* Where sums of part p begin: what the offset of 16 (32) codes adds too much, in the upper one of two words. Columns of
 * blocks of 256 have elements of -127 to 127, so 4 * 4 * 16 of them fit a word. */
AGK_INLINE __m256i start_of(code_type t, const half_block *b, int p, int h)
{
    const __m256i add = four(b->x + UNIT_OF_ONE * p + 4 + 4 * h);
    /* of iq1 the offset is 16, of its codes here 1 */
    return _mm256_slli_epi32(add, 16 + (p % 2 ? 2 : 0) - (elements_of_mask(t) > 0 ? 4 : 0));
}

/* Half of what the offset of q6_K adds too much, in both words. */
AGK_INLINE __m256i half_offset(const half_block *b, int p, int h)
{
    const __m256i half = _mm256_srai_epi32(four(b->x + UNIT_OF_ONE * p + 4 + 4 * h), 1);
    return _mm256_shuffle_epi8(half, _mm256_set1_epi32(0x01000100));
}

/* The codes of vector v of part p, or their magnitudes. `low` holds the bits of four parts, moved down for parts 2 and
 * 3, or one nibble of them; `high` holds the high bits. With shifts instead of tables for these, which keep 2 or 3
 * registers, q3_K takes 33.4 cycles instead of 35.6, q5_K 35.9 instead of 37.0. */
AGK_INLINE __m256i code_of_one(code_type t, int v, int p, __m256i low, __m256i high)
{
    if (has_magnitudes(t)) return _mm256_shuffle_epi8(magnitudes(p % 2), low);
    const int up = has_large_parts(t) && p % 2 ? 2 : 0;
    const __m256i code = _mm256_and_si256(low, _mm256_set1_epi8((char)(low_mask(t) << up)));
    if (high_mask(t) == 0) return code;
    return _mm256_or_si256(code, shifted(high, high_shift(t, p, v) - high_place(t) - up, high_mask(t) << up));
}

/* Pair 0 or 1 of the four parts. */
AGK_INLINE void two_parts(code_type t, const half_block *b, int pair, __m256 inner[2], __m256 inner_minimum[2])
{
    const bool high = high_mask(t) != 0, offset = !has_minimum(t) && !has_magnitudes(t) && t != Q6_K;
    const bool scales = has_minimum(t) || has_nibble_scales(t) || has_signed_scales(t), in_place = has_large_parts(t);
    const int per = scale_per_16(t) ? 4 : 8, most = has_magnitudes(t) || t == Q6_K ? 2 : t == Q5_K ? 4 : per;
    const int minimums = t == Q2_K ? 2 : has_minimum(t) || t == IQ1_S ? 1 : 0; /* of a part */
    const int part[2] = {t == Q6_K ? pair : 2 * pair, t == Q6_K ? pair + 2 : 2 * pair + 1};
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i words[2][2], sum[2][2], eighths[2][2];
    AGK_UNROLL for (int v = 0; v < 8; ++v)
    {
        __m256i x[2];
        AGK_UNROLL for (int i = 0; i < 2; ++i) x[i] = four(b->x + UNIT_OF_ONE * part[i] + 12 + 4 * v);
        if (offset && v % per == 0) {
            AGK_UNROLL for (int i = 0; i < 2; ++i) words[i][0] = words[i][1] = start_of(t, b, part[i], v / per);
        }
        AGK_UNROLL for (int g = 0; g < 2; ++g)
        {
            __m256i q = vector(b->low + 32 * g, t == Q6_K ? 3 * v + pair : v), bit = q;
            IN_ORDER(q); /* one load for both parts */
            if (pair > 0 && !has_nibbles(t)) q = _mm256_srli_epi16(q, 4);
            if (has_magnitudes(t)) q = _mm256_and_si256(q, nibble);
            if (high) {
                bit = vector(b->high + 32 * g, t == Q6_K ? 3 * v : v % 4);
                IN_ORDER(bit); /* loaded again, not kept in memory */
                if (has_magnitudes(t)) bit = _mm256_and_si256(v < 4 ? bit : _mm256_srli_epi16(bit, 4), nibble);
            }
            AGK_UNROLL for (int i = 0; i < 2; ++i)
            {
                const __m256i low = has_nibbles(t) && i > 0 ? _mm256_srli_epi16(q, 4) : q;
                const __m256i code = code_of_one(t, v, part[i], low, bit);
                const __m256i y =
                    has_magnitudes(t) ? _mm256_sign_epi8(x[i], _mm256_shuffle_epi8(signs_by_bit(part[i]), bit)) : x[i];
                const __m256i p = _mm256_maddubs_epi16(code, y);
                words[i][g] = v % most == 0 && !offset ? p : _mm256_add_epi16(words[i][g], p);
                IN_ORDER(words[i][g]);
            }
        }
        if (v % most != most - 1) continue;
        AGK_UNROLL for (int i = 0; i < 2; ++i) AGK_UNROLL for (int g = 0; g < 2; ++g)
        {
            const char *scale = b->scale + 16 * (per == 4 ? 2 * part[i] + v / 4 : part[i]) + 8 * g;
            const __m256i s = _mm256_madd_epi16(words[i][g], scales ? scale_words(t, scale) : _mm256_set1_epi16(1));
            sum[i][g] = (t == Q6_K ? v % per : v) < most ? s : _mm256_add_epi32(sum[i][g], s);
            if (t == Q6_K && v % per == per - 1) {
                const __m256i add = _mm256_madd_epi16(scale_words(t, scale), half_offset(b, part[i], v / per));
                /* scales of 8 bits, 256 times too large: both sums of 16 together could exceed 32 bits */
                const __m256 whole = _mm256_cvtepi32_ps(_mm256_add_epi32(sum[i][g], add));
                inner[g] = _mm256_fmadd_ps(whole, one(b->x + UNIT_OF_ONE * part[i]), inner[g]);
            }
            if (t == IQ1_M) {
                const __m256i e = _mm256_madd_epi16(signed_eights(b, part[i], v / 4, g), scale_words(t, scale));
                eighths[i][g] = v < most ? e : _mm256_add_epi32(eighths[i][g], e);
            }
        }
    }
    AGK_UNROLL for (int i = 0; i < 2; ++i)
    {
        const char *x = b->x + UNIT_OF_ONE * part[i];
        AGK_UNROLL for (int g = 0; g < 2; ++g)
        {
            __m256i s = i > 0 && in_place ? _mm256_srai_epi32(sum[i][g], 2) : sum[i][g];
            if (t == IQ1_M) s = _mm256_add_epi32(_mm256_slli_epi32(s, 3), eighths[i][g]);
            if (t != Q6_K) inner[g] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s), one(x), inner[g]);
            AGK_UNROLL for (int h = 0; h < minimums; ++h)
            {
                const char *minimum = b->minimum + 16 * (minimums * part[i] + h) + 8 * g;
                const __m256i sum_of_x = four(x + 4 + 4 * h); /* as a float; of iq1_s -16 times the sum of integers */
                const __m256 factor =
                    t == IQ1_S ? _mm256_mul_ps(_mm256_cvtepi32_ps(sum_of_x), one(x)) : _mm256_castsi256_ps(sum_of_x);
                inner_minimum[g] =
                    _mm256_fmadd_ps(_mm256_cvtepi32_ps(low_bytes(minimum, t == IQ1_S)), factor, inner_minimum[g]);
            }
        }
    }
}

/* Up to 16 results. */
AGK_INLINE void store_rows(float *c, int64_t rows, const __m256 acc[2])
{
    const __m256i at = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), n = _mm256_set1_epi32(rows < 16 ? (int)rows : 16);
    AGK_UNROLL for (int g = 0; g < 2; ++g)
    {
        const __m256i first = _mm256_cmpgt_epi32(_mm256_sub_epi32(n, _mm256_set1_epi32(8 * g)), at);
        _mm256_maskstore_ps(c + 8 * g, first, acc[g]);
    }
}

/* 16 rows. */
AGK_INLINE void group_of_one(code_type t, const agk_mm_block *b, const char *a, int64_t rows, float *c)
{
    const size_t bytes = data_at(t) + 64 * vectors(t), half_bytes = 32 * vectors(t);
    const bool made = t == Q2_K || has_nibble_scales(t);
    const int subs_of_half = scale_per_16(t) ? 8 : 4;
    const char *x = b->b;
    __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t k = 0; k < b->k; k += 256, a += bytes) {
        small_scales small;
        _Alignas(32) char eights[4][32];
        if (made) small_scales_of(t, a + (has_minimum(t) ? 64 : 32), &small);
        if (t == IQ1_S) eighths_of(a + mask_at(t, 0), &small);
        __m256 inner[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, inner_minimum[2] = {inner[0], inner[0]};
        half_block part = {.third = t == IQ1_M ? a + mask_at(t, 0) : NULL,
                           .eights = eights[0],
                           .low = a + data_at(t) + (high_mask(t) != 0 && t != Q6_K ? 256 : 0),
                           .high = a + data_at(t) + (t == Q6_K ? 128 : 0),
                           .scale = made ? small.scale[0] : a + (has_minimum(t) ? 64 : 32),
                           .minimum = t == Q2_K || t == IQ1_S ? small.minimum[0] : a + 64 + 128};
        for (int half = 0; half < 2; ++half, x += 4 * UNIT_OF_ONE) {
            part.x = x;
            if (t == IQ1_M) eights_of(x, eights);
            fetch(a + AHEAD + (size_t)half * bytes / 2, bytes / 4);
            two_parts(t, &part, 0, inner, inner_minimum);
            fetch(a + AHEAD + (size_t)(2 * half + 1) * bytes / 4, bytes / 4);
            if (t == Q4_K || t == Q5_K) part.low += 512;
            two_parts(t, &part, 1, inner, inner_minimum);
            part.low += half_bytes - (t == Q4_K || t == Q5_K ? 512 : 0);
            part.high += half_bytes;
            part.scale += 16 * subs_of_half;
            part.minimum += 16 * subs_of_half;
            if (t == IQ1_M) part.third += 32;
        }
        AGK_UNROLL for (int g = 0; g < 2; ++g)
        {
            const float unit = t == IQ1_S ? 1.0f : packed_types[t].unit * (has_signed_scales(t) ? 256.0f : 1.0f);
            __m256 d = halves(a + 16 * g);
            if (unit != 1.0f) d = _mm256_mul_ps(d, _mm256_set1_ps(1.0f / unit));
            acc[g] = _mm256_fmadd_ps(inner[g], d, acc[g]);
            if (has_minimum(t)) acc[g] = _mm256_fnmadd_ps(inner_minimum[g], halves(a + 32 + 16 * g), acc[g]);
            if (t == IQ1_S)
                acc[g] = _mm256_fnmadd_ps(inner_minimum[g], _mm256_mul_ps(d, _mm256_set1_ps(1.0f / 128)), acc[g]);
        }
    }
    store_rows(c, rows, acc);
}

AGK_INLINE void groups_of_one(code_type t, const agk_mm_block *b)
{
    const char *a = b->a;
    for (int64_t row = 0; row < b->rows; row += 16, a += b->lda) {
        group_of_one(t, b, a, b->rows - row, b->c + row);
    }
}

#endif
