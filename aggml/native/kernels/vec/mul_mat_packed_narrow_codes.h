/* Codes and scales of packed weights as 256-bit vectors, each of 8 rows of a group of 16. All static inline. Not here:
 * what is done with them (mul_mat_packed_narrow.h), AVX-512 (kernels/avx512/mul_mat_packed_codes.h). */
#ifndef AGK_VEC_PACKED_NARROW_CODES_H
#define AGK_VEC_PACKED_NARROW_CODES_H

#include <immintrin.h>

#include "kernels/inline.h"
#include "kernels/mul_mat_packed.h"
#include "kernels/mul_mat_packed_types.h"

/* 8 of the 16 rows. */
AGK_INLINE __m256i vector(const char *p, int i)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(p + 64 * (size_t)i));
}

/* Each byte shifted right (left, if negative); the mask clears the bits that come from the neighbour. */
AGK_INLINE __m256i shifted(__m256i x, int right, int mask)
{
    const int by = right < 0 ? -right : right;
    const __m256i y = right > 0 ? _mm256_srli_epi16(x, by) : right < 0 ? _mm256_slli_epi16(x, by) : x;
    return _mm256_and_si256(y, _mm256_set1_epi8((char)mask));
}

/* Codes out of the table of levels of the type; with their signs: less their offset of 128. */
AGK_INLINE __m256i levels(code_type t, bool with_sign, __m256i bits)
{
    const __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)levels_of(t));
    const __m128i table = with_sign ? _mm_xor_si128(codes, _mm_set1_epi8(-128)) : codes;
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), bits);
}

/* The bits of codes v of 32 k of 8 rows, in the order of k: `data` is where their lanes begin. */
AGK_INLINE __m256i bits(code_type t, const char *data, int64_t half, int part, int v)
{
    if (t == Q8_0) return vector(data, v);
    if (of_256(t) && !nibbles_of_256(t)) {
        const __m256i low = vector(data + low_bits_at(t, half, part, v), 0),
                      code = shifted(low, low_shift(t, part), low_mask(t));
        if (high_mask(t) == 0) return code;
        const __m256i high = vector(data + high_bits_at(t, half, v), 0);
        return _mm256_or_si256(code, shifted(high, high_shift(t, part, v) - high_place(t), high_mask(t)));
    }
    const bool fifth = bits_of(t) == Q5_0;
    const char *qs = data + (fifth ? 64 : nibbles_of_256(t) ? 1024 * half + 256 * part : 0);
    const __m256i q = shifted(vector(qs, v % 4), v / 4 * 4, 15);
    return fifth ? _mm256_or_si256(q, shifted(vector(data, 0), v - 4, 16)) : q;
}

/* The third bits of rows 8 g .. 8 g + 7, in each byte of a lane. */
AGK_INLINE __m256i third_bits(const char *mask, int g)
{
    const __m256i first = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), row = _mm256_slli_epi32(first, 8 * g);
    uint16_t rows;
    memcpy(&rows, mask, sizeof rows);
    const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi16((short)rows), row), row);
    return _mm256_and_si256(set, _mm256_set1_epi8(4));
}

/* The codes of 32 k of rows 8 g .. 8 g + 7, unsigned. */
AGK_INLINE void codes_of_8(code_type t, const char *block, int g, int64_t half, int part, __m256i w[8])
{
    const int each = elements_of_mask(t);
    __m256i third[4];
    AGK_UNROLL for (int i = 0; i < 4 && each > 0; ++i)
    {
        third[i] = i * 8 % each == 0 ? third_bits(block + mask_at(t, 128 * half + 32 * part + 8 * i), g) : third[0];
    }
    AGK_UNROLL for (int v = 0; v < 8; ++v)
    {
        w[v] = bits(t, block + data_at(t) + 32 * g, half, part, v);
        if (each > 0) w[v] = _mm256_or_si256(w[v], third[v / 2]);
        if (has_levels(t)) w[v] = levels(t, false, w[v]);
    }
}

AGK_INLINE __m256 halves(const char *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

AGK_INLINE __m256i low_bytes(const char *p, bool with_sign)
{
    const __m128i x = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return with_sign ? _mm256_cvtepi8_epi32(x) : _mm256_cvtepu8_epi32(x);
}

/* Half of 2^(e - 127): the bits of 2^(e - 128), which is subnormal below e = 2. */
AGK_INLINE __m256 half_of_e8m0(const char *e)
{
    const __m256i x = low_bytes(e, false), normal = _mm256_slli_epi32(_mm256_sub_epi32(x, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), x);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), x)));
}

/* Half of an e4m3: as the upper byte of an f16, shifted by one, it is 2^8 times too small. */
AGK_INLINE __m256 half_of_e4m3(const char *e)
{
    const __m128i x = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)e));
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16(x, 7)), _mm256_set1_ps(128.0f));
}

/* Scales of sub-block j and what multiplies the sums of the columns, of 8 rows: one each, two where scales are per 16.
 * Those of the block are d and m; `block` is where the 16-bit ones of these rows begin, `bytes` where those of one byte
 * do. */
AGK_INLINE void scales_of(code_type t, const char *bytes, int64_t j, __m256 d, __m256 m, __m256 scale[2],
                          __m256 minimum[2])
{
    scale[0] = d;
    minimum[0] = m;
    const int parts = scale_per_16(t) ? 2 : 1;
    AGK_UNROLL for (int h = 0; h < parts; ++h)
    {
        const int64_t sub = scale_per_16(t) ? 2 * j + h : j;
        const char *at = bytes + 16 * (has_nibble_scales(t) ? sub >> 1 : sub);
        if (t == Q2_K) {
            const __m256i x = low_bytes(at, false);
            scale[h] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(15))));
            minimum[h] = _mm256_mul_ps(m, _mm256_cvtepi32_ps(_mm256_srli_epi32(x, 4)));
        } else if (t == NVFP4) {
            scale[h] = half_of_e4m3(at);
        } else if (has_nibble_scales(t)) {
            const __m256i x = _mm256_srl_epi32(low_bytes(at, false), _mm_cvtsi32_si128(4 * (int)(sub & 1)));
            const __m256 s = _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(15)));
            scale[h] = _mm256_fmadd_ps(_mm256_add_ps(d, d), s, d);
        } else if (has_signed_scales(t)) {
            scale[h] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(low_bytes(at, true)));
        } else if (t == Q4_K || t == Q5_K) {
            scale[h] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(low_bytes(at, false)));
            minimum[h] = _mm256_mul_ps(m, _mm256_cvtepi32_ps(low_bytes(at + 128, false)));
        }
    }
}

#endif
