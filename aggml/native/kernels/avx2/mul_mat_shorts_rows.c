/* Rows of quantized blocks as bytes or words with scales (mul_mat_shorts.h), AVX2: by the functions that unpack
 * blocks to floats, before they multiply by the scale (vec/mul_mat_rows.h). */
#include "kernels/mul_mat_shorts.h"
#include "math.h"

/* 16 elements in the space of 16 floats, where the functions that unpack blocks put them. */
typedef struct piece {
    int8_t q[16];
    float d, minimum;
    float unused[10];
} piece;

#define V_OUT
typedef float v_dst;

AGK_INLINE void v_out_with(v_dst *dst, __m128i q, float d, float m)
{
    piece *y = (piece *)(void *)dst;
    _mm_storeu_si128((__m128i *)(void *)y->q, q);
    y->d = d;
    y->minimum = m;
}

AGK_INLINE void v_out(v_dst *dst, __m128i q, float d)
{
    v_out_with(dst, q, d, 0.0f);
}

/* 8 of 16 signed bytes. */
AGK_INLINE vf v_widen(__m128i q, int first)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(first == 0 ? q : _mm_unpackhi_epi64(q, q)));
}

#include "kernels/vec/dequant_32.h"
#include "kernels/vec/dequant_bytes.h"

AGK_INLINE float half(uint16_t bits)
{
    return v_half(bits);
}

/* Blocks of 256 as if d and m were 1: their scales are then whole numbers, or eighths, and minimums, too. */
#define v_half(bits) 1.0f
#include "kernels/vec/dequant_iq.h"
#include "kernels/vec/dequant_k.h"
#undef v_half

/* Sums of 16 signed bytes each. */
AGK_INLINE void sums_of(__m256i q, int32_t sums[2])
{
    const __m256i s = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
    const __m256i pairs = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4e));
    const __m256i all = _mm256_add_epi32(pairs, _mm256_shuffle_epi32(pairs, 0xb1));
    sums[0] = _mm_cvtsi128_si32(_mm256_castsi256_si128(all));
    sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(all, 1));
}

AGK_INLINE void put_words(int16_t *to, __m128i q)
{
    const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_cvtepi8_epi16(_mm_shuffle_epi8(q, order)));
}

/* n elements that are unpacked to rows; a block of 256 has d and m, those of others are in their scales. */
AGK_INLINE char *finish(const piece *x, int n, bool wide, bool halves, bool minimum, bool words, int offset, float d,
                        float m, char *out)
{
    const size_t bytes = agk_short_row_bytes(words);
    int32_t total = 0;
    agk_short_row *first = (agk_short_row *)(void *)out;
    AGK_UNROLL for (int i = 0; i < n / AGK_MM_BLOCK; ++i, x += 2, out += bytes)
    {
        agk_short_row *y = (agk_short_row *)(void *)out;
        const __m128i low = v_bytes(x[0].q), high = v_bytes(x[1].q);
        __m256i q = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
        int32_t sums[2];
        if (offset != 0) q = _mm256_add_epi8(q, _mm256_set1_epi8((char)offset));
        if (words) {
            put_words(y->words, low);
            put_words(y->words + 16, high);
        } else {
            _mm256_storeu_si256((__m256i *)(void *)y->q, q);
        }
        sums_of(q, sums);
        if (!halves) sums[0] = sums[1] = sums[0] + sums[1];
        AGK_UNROLL for (int h = 0; h < 2; ++h)
        {
            const float scale = wide ? d * x[h].d : x[h].d;
            y->d[h] = scale;
            y->start[h] = -128 * sums[h];
            y->minimum[h] = 0.0f;
            if (minimum) y->minimum[h] = (wide ? m * x[h].minimum : x[h].minimum) - (float)offset * scale;
            y->factor[h] = 0;
            if (wide) {
                const int32_t factor = (int32_t)(8.0f * x[h].d);
                y->factor[h] = agk_short_twice(factor);
                if (halves || h == 0) total += y->start[h] * factor;
            }
        }
        y->unit = 0.125f * d;
        y->total = 0;
    }
    first->total = total;
    return out;
}

#define ROW_OF(kernel, block, n, wide, halves, minimum, words, offset, d_of, m_of) \
    static void row_##kernel(const void *src, char *out, int64_t size) \
    { \
        piece pieces[(n) / 16]; \
        const block *x = src; \
        for (; size >= (n); size -= (n), ++x) { \
            v_##kernel##_to_f32(x, (float *)(void *)pieces); \
            out = finish(pieces, (n), (wide), (halves), (minimum), (words), (offset), (d_of), (m_of), out); \
        } \
    }
#define ROW_32(kernel, n, halves, minimum, words, offset) \
    ROW_OF(kernel, agk_block_##kernel, n, false, halves, minimum, words, offset, 0.0f, 0.0f)
#define ROW_256(kernel, halves) ROW_OF(kernel, agk_block_##kernel, 256, true, halves, false, false, 0, half(x->d), 0.0f)
#define ROW_256_MINIMUM(kernel, halves, offset) \
    ROW_OF(kernel, agk_block_##kernel, 256, true, halves, true, false, offset, half(x->d), half(x->m))

ROW_32(q4_0, 32, false, false, false, 0)
ROW_32(q4_1, 32, false, true, false, -8)
ROW_32(q5_0, 32, false, false, false, 0)
ROW_32(q5_1, 32, false, true, false, -16)
ROW_32(mxfp4, 32, false, false, false, 0)
ROW_32(nvfp4, 64, true, false, false, 0)
ROW_32(q1_0, 128, false, false, false, 0)
ROW_32(q2_0, 64, false, false, false, 0)
ROW_256_MINIMUM(q2_k, true, 0)
ROW_256_MINIMUM(q4_k, false, -8)
ROW_256_MINIMUM(q5_k, false, -16)
ROW_256(q3_k, true)
ROW_256(q6_k, true)
ROW_256(tq1_0, false)
ROW_256(tq2_0, false)
ROW_256(iq2_xxs, false)
ROW_256(iq2_xs, true)
ROW_256(iq2_s, true)
ROW_256(iq3_xxs, false)
ROW_256(iq3_s, false)
ROW_256(iq1_s, false)

AGK_INLINE float half_of_iq1_m(const agk_block_iq1_m *x)
{
    uint16_t w[4];
    memcpy(w, x->scales, sizeof w);
    return half((uint16_t)(w[0] >> 12 | (w[1] >> 8 & 0xf0) | (w[2] >> 4 & 0xf00) | (w[3] & 0xf000)));
}
ROW_OF(iq1_m, agk_block_iq1_m, 256, true, true, false, false, 0, half_of_iq1_m(x), 0.0f)

/* Codes of 8 bits are words or bytes. */
#define v_q8_0_words_to_f32 v_q8_0_to_f32
#define v_iq4_nl_words_to_f32 v_iq4_nl_to_f32
#define v_iq4_xs_words_to_f32 v_iq4_xs_to_f32
ROW_32(q8_0, 32, false, false, false, 0)
ROW_32(iq4_nl, 32, false, false, false, 0)
ROW_256(iq4_xs, false)
ROW_OF(q8_0_words, agk_block_q8_0, 32, false, false, false, true, 0, 0.0f, 0.0f)
ROW_OF(iq4_nl_words, agk_block_iq4_nl, 32, false, false, false, true, 0, 0.0f, 0.0f)
ROW_OF(iq4_xs_words, agk_block_iq4_xs, 256, true, false, false, true, 0, half(x->d), 0.0f)

void agk_mm_shorts_rows_avx2(int type, bool words, const void *src, void *out, int64_t n)
{
#define AGK_ROW(TYPE, name) \
    case AGK_##TYPE: row_##name(src, out, n); break;
#define AGK_ROW_8(TYPE, name) \
    case AGK_##TYPE: (words ? row_##name##_words : row_##name)(src, out, n); break;
    switch (type) {
        AGK_ROW_8(Q8_0, q8_0)
        AGK_ROW_8(IQ4_NL, iq4_nl)
        AGK_ROW_8(IQ4_XS, iq4_xs)
        AGK_ROW(Q4_0, q4_0)
        AGK_ROW(Q4_1, q4_1)
        AGK_ROW(Q5_0, q5_0)
        AGK_ROW(Q5_1, q5_1)
        AGK_ROW(MXFP4, mxfp4)
        AGK_ROW(NVFP4, nvfp4)
        AGK_ROW(Q1_0, q1_0)
        AGK_ROW(Q2_0, q2_0)
        AGK_ROW(Q2_K, q2_k)
        AGK_ROW(Q3_K, q3_k)
        AGK_ROW(Q4_K, q4_k)
        AGK_ROW(Q5_K, q5_k)
        AGK_ROW(Q6_K, q6_k)
        AGK_ROW(TQ2_0, tq2_0)
        AGK_ROW(TQ1_0, tq1_0)
        AGK_ROW(IQ2_XXS, iq2_xxs)
        AGK_ROW(IQ2_XS, iq2_xs)
        AGK_ROW(IQ2_S, iq2_s)
        AGK_ROW(IQ3_XXS, iq3_xxs)
        AGK_ROW(IQ3_S, iq3_s)
        AGK_ROW(IQ1_S, iq1_s)
        AGK_ROW(IQ1_M, iq1_m)
    default: break;
    }
}
