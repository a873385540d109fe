/* Codes and scales of packed weights as vectors, AVX-512, for the products in lanes (mul_mat_packed.h,
 * kernels/amd512/mul_mat_packed.h) and on tiles (kernels/amx/mul_mat_packed_tiles.h). Everything is static inline, so
 * that each file has its own copy. */
#ifndef AGK_AVX512_PACKED_CODES_H
#define AGK_AVX512_PACKED_CODES_H

#include <immintrin.h>

#include "kernels/inline.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat_packed.h"
#include "kernels/mul_mat_packed_types.h"

/* Bytes to prefetch ahead in each of two streams, on Intel's processors; from 1 to 3 KB it makes little difference. */
enum { AGK_PACKED_AHEAD = 2048 };

AGK_INLINE __m512i vector(const char *p, int i)
{
    return _mm512_loadu_si512(p + 64 * (size_t)i);
}

/* Whether a shift by a number of bits that is known at run time only is a shift right and another one left, instead of
 * one rotation. The includer says so where rotations are slow (kernels/zen5/lines.h). */
#ifndef AGK_SHIFTS_APART
#define AGK_SHIFTS_APART false
#endif

/* Shifted right by `down`, then left by `up`, up to bits that come from neighbours, which the caller clears. */
AGK_INLINE __m512i moved(__m512i x, int down, int up)
{
    const int right = down - up;
    if (!__builtin_constant_p(right)) {
        if (!AGK_SHIFTS_APART) return _mm512_rorv_epi32(x, _mm512_set1_epi32(right));
        const bool left_alone = __builtin_constant_p(down) && down == 0;
        if (left_alone) return _mm512_sllv_epi32(x, _mm512_set1_epi32(up));
        const __m512i y = _mm512_srlv_epi32(x, _mm512_set1_epi32(down));
        return up > 0 ? _mm512_slli_epi16(y, up) : y;
    }
    return right > 0 ? _mm512_srli_epi16(x, right) : right < 0 ? _mm512_slli_epi16(x, -right) : x;
}

/* Each byte shifted right; the mask clears the bits that come from the neighbouring byte. */
AGK_INLINE __m512i shifted(__m512i x, int down, int mask)
{
    return _mm512_and_si512(moved(x, down, 0), _mm512_set1_epi8((char)mask));
}

/* Each byte shifted right, then left, and masked, then joined with y. */
AGK_INLINE __m512i joined(__m512i x, int down, int up, int mask, __m512i y)
{
    enum { AND_OR = 0xea }; /* (a & b) | c */
    return _mm512_ternarylogic_epi32(moved(x, down, up), _mm512_set1_epi8((char)mask), y, AND_OR);
}

/* Codes out of the table of levels of the type. */
AGK_INLINE __m512i levels(code_type t, __m512i bits)
{
    const __m128i table = _mm_loadu_si128((const __m128i *)(const void *)levels_of(t));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), bits);
}

/* The bits of codes v of 8 vectors of 32 k, in the order of k. A block of 256 has two halves of four parts, and this is
 * part first + p. `first` may be known at run time only. If it is `even`, p alone tells which nibble of a byte belongs
 * to the part. */
AGK_INLINE __m512i bits(code_type t, const char *data, int64_t half, int first, bool even, int p, int v)
{
    if (t == Q8_0) return vector(data, v);
    const int part = first + p;
    if (of_256(t) && !nibbles_of_256(t)) {
        const bool pairs = even && (bits_of(t) == Q4_K || bits_of(t) == Q5_K);
        const __m512i low =
            shifted(vector(data + low_bits_at(t, half, part, v), 0), low_shift(t, pairs ? p : part), low_mask(t));
        if (high_mask(t) == 0) return low;
        const __m512i high = vector(data + high_bits_at(t, half, v), 0);
        int down = high_shift(t, part, v), up = high_place(t);
        if (bits_of(t) != Q6_K && v >= 4) down -= up, up = 0;  /* at least 4 */
        if (bits_of(t) == Q5_K && v < 4) up -= down, down = 0; /* at most 3 */
        return joined(high, down, up, high_mask(t), low);
    }
    const bool fifth = bits_of(t) == Q5_0;
    const char *qs = data + (fifth ? 64 : nibbles_of_256(t) ? 1024 * half + 256 * part : 0);
    const __m512i q = shifted(vector(qs, v % 4), v / 4 * 4, 15);
    return fifth ? joined(vector(data, 0), v, 4, 16, q) : q;
}

/* Codes, unsigned. */
AGK_INLINE __m512i code(code_type t, const char *data, int64_t half, int first, bool even, int p, int v)
{
    __m512i found = bits(t, data, half, first, even, p, v);
    if (elements_of_mask(t) > 0) {
        __mmask16 third;
        memcpy(&third, data - data_at(t) + mask_at(t, 128 * half + 32 * (first + p) + 4 * v), sizeof third);
        found = _mm512_mask_or_epi32(found, third, found, _mm512_set1_epi8(4));
    }
    return has_levels(t) ? levels(t, found) : found;
}

/* All 8 vectors. Only the part is known at compile time: all eight parts unrolled would be 20 KB of code. */
AGK_INLINE void codes(code_type t, const char *data, int64_t half, int part, __m512i w[8])
{
    AGK_UNROLL for (int v = 0; v < 8; ++v) w[v] = code(t, data, half, 0, true, part, v);
}

AGK_INLINE __m512 halves(const char *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

AGK_INLINE __m128i bytes(const char *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

AGK_INLINE __m512 unsigned_floats(__m128i x)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(x));
}

AGK_INLINE __m512 signed_floats(__m128i x)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x));
}

/* Half of 2^(e - 127): the bits of 2^(e - 128), which is subnormal below e = 2. */
AGK_INLINE __m512 half_of_e8m0(__m128i e)
{
    const __m512i x = _mm512_cvtepu8_epi32(e),
                  normal = _mm512_slli_epi32(_mm512_sub_epi32(x, _mm512_set1_epi32(1)), 23);
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x200000), x);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, _mm512_cmplt_epi32_mask(x, _mm512_set1_epi32(2)), small));
}

/* The exponents of these. */
AGK_INLINE __m512 exponents_of_e8m0(__m128i e)
{
    return _mm512_sub_ps(unsigned_floats(e), _mm512_set1_ps(128.0f));
}

/* Half of an e4m3: as the upper byte of an f16, shifted by one, it is 2^8 times too small. */
AGK_INLINE __m512 half_of_e4m3(__m128i e)
{
    const __m512 x = _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(e), 7));
    return _mm512_mul_ps(x, _mm512_set1_ps(128.0f));
}

/* (2 s + 1) d of 16 nibbles s: the low ones of bytes, or the high ones if `odd`. */
AGK_INLINE __m512 nibble_scales(__m128i x, int odd, __m512 d)
{
    const __m128i s = _mm_and_si128(_mm_srl_epi16(x, _mm_cvtsi32_si128(4 * odd)), _mm_set1_epi8(15));
    return _mm512_fmadd_ps(_mm512_add_ps(d, d), unsigned_floats(s), d);
}

/* The scales of sub-block j and the factors for the sums of the columns: one of each, two where there is a scale for
 * each 16. */
AGK_INLINE void scales_of(code_type t, const char *block, int64_t j, __m512 d, __m512 m, __m512 scale[2],
                          __m512 minimum[2])
{
    scale[0] = d;
    minimum[0] = m;
    if (t == Q2_K) {
        AGK_UNROLL for (int h = 0; h < 2; ++h)
        {
            const __m128i x = bytes(block + 64 + 16 * (2 * j + h));
            scale[h] = _mm512_mul_ps(d, unsigned_floats(_mm_and_si128(x, _mm_set1_epi8(15))));
            minimum[h] = _mm512_mul_ps(m, unsigned_floats(_mm_and_si128(_mm_srli_epi16(x, 4), _mm_set1_epi8(15))));
        }
    } else if (t == NVFP4) {
        AGK_UNROLL for (int h = 0; h < 2; ++h) scale[h] = half_of_e4m3(bytes(block + 16 * h));
    } else if (has_nibble_scales(t)) {
        const __m128i x = bytes(block + 32 + 16 * (scale_per_16(t) ? j : j >> 1));
        scale[0] = nibble_scales(x, scale_per_16(t) ? 0 : (int)(j & 1), d);
        if (scale_per_16(t)) scale[1] = nibble_scales(x, 1, d);
    } else if (has_signed_scales(t) && scale_per_16(t)) {
        AGK_UNROLL for (int h = 0; h < 2; ++h)
        {
            scale[h] = _mm512_mul_ps(d, signed_floats(bytes(block + 32 + 16 * (2 * j + h))));
        }
    } else if (t == Q4_K || t == Q5_K) {
        scale[0] = _mm512_mul_ps(d, unsigned_floats(bytes(block + 64 + 16 * j)));
        minimum[0] = _mm512_mul_ps(m, unsigned_floats(bytes(block + 192 + 16 * j)));
    } else if (has_signed_scales(t)) {
        scale[0] = _mm512_mul_ps(d, signed_floats(bytes(block + 32 + 16 * j)));
    }
}

AGK_INLINE __m512i four(const char *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm512_set1_epi32(x);
}

AGK_INLINE __m512 one(const char *p)
{
    return _mm512_castsi512_ps(four(p));
}

/* The scale and the minimum of a block of 16 rows, the minimum with its sign. */
AGK_INLINE void scales_of_block(code_type t, const char *a, __m512 *d, __m512 *m)
{
    const float too_large = packed_types[t].unit;
    *d = t == MXFP4 ? half_of_e8m0(bytes(a)) : halves(a);
    if (too_large != 1.0f) *d = _mm512_mul_ps(*d, _mm512_set1_ps(1.0f / too_large));
    *m = _mm512_setzero_ps();
    if (has_minimum(t)) *m = halves(a + 32);
    if (of_256(t)) *m = _mm512_sub_ps(_mm512_setzero_ps(), *m); /* the minimum of types of 256 is subtracted */
}

/* The mask of the rows that exist, if `left` of 16 are left. */
AGK_INLINE __mmask16 rows_of_group(int64_t left)
{
    return (__mmask16)(left < 16 ? (1u << left) - 1 : 0xffffu);
}

/* The kernel of type t: groups(t, N, b) of the includer, with N known to the compiler. */
#define AGK_FOR_COLUMNS(kernel, t) \
    void kernel(const agk_mm_block *b) \
    { \
        switch (b->cols) { \
        case 1: groups(t, 1, b); break; \
        case 2: groups(t, 2, b); break; \
        case 3: groups(t, 3, b); break; \
        case 4: groups(t, 4, b); break; \
        case 5: groups(t, 5, b); break; \
        case 6: groups(t, 6, b); break; \
        case 7: groups(t, 7, b); break; \
        default: groups(t, 8, b); break; \
        } \
    }

#endif
