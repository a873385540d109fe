/* Weights packed, AVX-512: the bytes of kernels/scalar/mul_mat_packed.c, for 16 rows of the common types.
 *
 * Words of 16 rows are transposed in registers, 8 words of each row at a time. Plain C moves a word at a time. One
 * thread of a Zen 4, 2.4 MB of q4_K from L3: 0.018 instead of 0.069 ns an element; q8_0 0.052 and 0.165, q6_K 0.030 and
 * 0.090. Not here: the layout (kernels/mul_mat_packed.h), the kernel (mul_mat_packed_columns.c). */
#ifndef AGK_AVX512_PACKED_GROUP_H
#define AGK_AVX512_PACKED_GROUP_H

#include <immintrin.h>

#include "formats/quant.h"
#include "kernels/mul_mat_packed_types.h"
#include "table/kernel_types.h"

enum { ROWS = AGK_PACKED_ROWS, VECTOR = 64 };

/* In each 128 bits, word j of vector i becomes word i of vector j. */
AGK_INLINE void transpose_lanes(__m512i v[4])
{
    const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]),
                  c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm512_unpacklo_epi64(a, c), v[1] = _mm512_unpackhi_epi64(a, c);
    v[2] = _mm512_unpacklo_epi64(b, d), v[3] = _mm512_unpackhi_epi64(b, d);
}

/* Vector i: word i of each of 16 rows, i < 4. */
AGK_INLINE void read_4(const char *x, size_t stride, __m512i v[4])
{
#define ROW(r) _mm_loadu_si128((const __m128i *)(const void *)(x + (size_t)(r) * stride))
    for (int r = 0; r < 4; ++r) {
        __m512i rows = _mm512_castsi128_si512(ROW(r));
        rows = _mm512_inserti32x4(rows, ROW(r + 4), 1);
        rows = _mm512_inserti32x4(rows, ROW(r + 8), 2);
        v[r] = _mm512_inserti32x4(rows, ROW(r + 12), 3);
    }
#undef ROW
    transpose_lanes(v);
}

/* The same of 8 words. */
AGK_INLINE void read_8(const char *x, size_t stride, __m512i v[8])
{
    __m512i a[4], b[4]; /* rows 0 to 7, and 8 to 15 */
#define ROW(r) _mm256_loadu_si256((const __m256i *)(const void *)(x + (size_t)(r) * stride))
    for (int r = 0; r < 4; ++r) {
        a[r] = _mm512_inserti64x4(_mm512_castsi256_si512(ROW(r)), ROW(r + 4), 1);
        b[r] = _mm512_inserti64x4(_mm512_castsi256_si512(ROW(r + 8)), ROW(r + 12), 1);
    }
#undef ROW
    transpose_lanes(a);
    transpose_lanes(b);
    for (int i = 0; i < 4; ++i) {
        v[i] = _mm512_shuffle_i64x2(a[i], b[i], 0x88);
        v[i + 4] = _mm512_shuffle_i64x2(a[i], b[i], 0xdd);
    }
}

AGK_INLINE void put_8(const char *x, size_t stride, char *to, size_t step, __m512i flip)
{
    __m512i v[8];
    read_8(x, stride, v);
    for (size_t i = 0; i < 8; ++i) _mm512_storeu_si512(to + i * step, _mm512_xor_si512(v[i], flip));
}

AGK_INLINE void put_4(const char *x, size_t stride, char *to)
{
    __m512i v[4];
    read_4(x, stride, v);
    for (size_t i = 0; i < 4; ++i) _mm512_storeu_si512(to + i * VECTOR, v[i]);
}

/* The four bytes of 16 lanes as four times 16 bytes. */
AGK_INLINE void put_bytes(char *to, __m512i v)
{
    const __m512i in_lane = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)),
                  across = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(across, _mm512_shuffle_epi8(v, in_lane)));
}

/* Both halves of 16 lanes as twice 16 halves. */
AGK_INLINE void put_pairs(char *to, __m512i v)
{
    const __m512i in_lane = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15)),
                  across = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi64(across, _mm512_shuffle_epi8(v, in_lane)));
}

AGK_INLINE void put_half(const char *x, size_t stride, char *to)
{
    for (size_t r = 0; r < ROWS; ++r) memcpy(to + 2 * r, x + r * stride, 2);
}

/* Sixteen bytes of each row, which become 16 x 16. */
AGK_INLINE void put_scales(const char *x, size_t stride, char *to)
{
    __m512i v[4];
    read_4(x, stride, v);
    for (size_t i = 0; i < 4; ++i) put_bytes(to + i * VECTOR, v[i]);
}

/* d, m, and eight scales and minimums of six bits, as put_q4_k of plain C. */
AGK_INLINE void put_six(const char *x, size_t stride, char *to)
{
    __m512i v[4];
    read_4(x, stride, v);
    put_pairs(to, v[0]);
    const __m512i six = _mm512_set1_epi32(0x3f3f3f3f), low = _mm512_set1_epi32(0x0f0f0f0f),
                  high = _mm512_set1_epi32(0x30303030);
    for (int i = 0; i < 2; ++i) { /* scales, minimums */
        const __m512i w = v[1 + i], last = _mm512_and_si512(_mm512_srl_epi32(v[3], _mm_cvtsi32_si128(4 * i)), low);
        put_bytes(to + (1 + 2 * i) * VECTOR, _mm512_and_si512(w, six));
        put_bytes(to + (2 + 2 * i) * VECTOR, _mm512_or_si512(last, _mm512_and_si512(_mm512_srli_epi32(w, 2), high)));
    }
}

/* The low and high bits of a block of 256, as put_bits of plain C. */
AGK_INLINE void put_bits(code_type t, const char *low, const char *high, size_t stride, char *data)
{
    enum { PART = 32 };
    const int together = t == Q2_K ? 1 : 2, step = t == Q6_K ? 1 : 2;
    const size_t apart = t == Q6_K ? 3 * VECTOR : VECTOR;
    const __m512i none = _mm512_setzero_si512(), nibbles = _mm512_set1_epi32(0x0f0f0f0f);
    __m512i v[8];
    if (t == Q5_K) read_8(high, stride, v);
    for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < together; ++i, low += PART)
            put_8(low, stride, data + low_bits_at(t, half, step * i, 0), apart, none);
        if (t == Q6_K) put_8(high + PART * half, stride, data + high_bits_at(t, half, 0), apart, none);
        for (int i = 0; i < 4 && t == Q5_K; ++i) {
            const __m128i by = _mm_cvtsi32_si128(4 * half);
            const __m512i first = _mm512_and_si512(_mm512_srl_epi32(v[i], by), nibbles),
                          last = _mm512_and_si512(_mm512_srl_epi32(v[i + 4], by), nibbles);
            _mm512_storeu_si512(data + high_bits_at(t, half, i), _mm512_or_si512(first, _mm512_slli_epi32(last, 4)));
        }
    }
}

#define AT(type, field) (x + offsetof(agk_block_##type, field))

/* A block of 16 rows; false: this type is left to plain C. */
AGK_INLINE bool put_block(int type, const char *x, size_t stride, char *block, char *data)
{
    switch (type) {
    case AGK_Q8_0:
        put_half(AT(q8_0, d), stride, block);
        put_8(AT(q8_0, qs), stride, data, VECTOR, _mm512_set1_epi8(-128));
        return true;
    case AGK_Q4_0:
    case AGK_IQ4_NL:
        put_half(AT(q4_0, d), stride, block);
        put_4(AT(q4_0, qs), stride, data);
        return true;
    case AGK_Q4_1:
        put_half(AT(q4_1, d), stride, block);
        put_half(AT(q4_1, m), stride, block + 2 * ROWS);
        put_4(AT(q4_1, qs), stride, data);
        return true;
    case AGK_MXFP4:
        for (size_t r = 0; r < ROWS; ++r) block[r] = AT(mxfp4, e)[r * stride];
        put_4(AT(mxfp4, qs), stride, data);
        return true;
    case AGK_Q2_K:
        put_half(AT(q2_k, d), stride, block);
        put_half(AT(q2_k, m), stride, block + 2 * ROWS);
        put_scales(AT(q2_k, scales), stride, block + 4 * ROWS);
        put_bits(Q2_K, AT(q2_k, qs), NULL, stride, data);
        return true;
    case AGK_Q4_K:
        put_six(x, stride, block);
        put_bits(Q4_K, AT(q4_k, qs), NULL, stride, data);
        return true;
    case AGK_Q5_K:
        put_six(x, stride, block);
        put_bits(Q5_K, AT(q5_k, qs), AT(q5_k, qh), stride, data);
        return true;
    case AGK_Q6_K:
        put_half(AT(q6_k, d), stride, block);
        put_scales(AT(q6_k, scales), stride, block + 2 * ROWS);
        put_bits(Q6_K, AT(q6_k, ql), AT(q6_k, qh), stride, data);
        return true;
    default: return false;
    }
}

#undef AT

#endif
