/* Rows of blocks of 256 that have one scale, AVX-512 (mul_mat_bytes.h): bytes that are codes times the scales of 16 or
 * 32 k. So the sums of 256 k are integers (mul_mat_bytes_wide.h).
 *
 * q2_K: codes of at most 3 times at most 15; minimums remain. q3_K: -4 to 3 times -32 to 31, that is -124 to 128, so
 * the negatives fit a byte and d changes its sign. iq1: 1, 7 or 9 with either sign times an odd number of at most 15,
 * that is odd and at most 135, so half the next even number fits. tq1_0 and tq2_0 have no other scales. */
#include "kernels/mul_mat_bytes.h"
#include "math.h"

AGK_INLINE vf v_widen(__m128i q, int first)
{
    (void)first; /* always 0 */
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q));
}

#include "kernels/vec/dequant_iq.h"
#include "kernels/vec/dequant_k.h"

/* Four pieces of 16 k: bytes 0 to 7 of a piece are looked up in the products of its scale with `values`, words 0 to 7
 * of each 16 bytes. odd: (x + 1) / 2 of them. The other members of the pieces become zero. */
AGK_INLINE void put_64(agk_bytes_row *y, bool odd, __m512i codes, __m512i values, __m512i scales)
{
    const __m512i low = _mm512_setr_epi64(0, 1, 0, 0, 2, 3, 0, 0), high = _mm512_setr_epi64(4, 5, 0, 0, 6, 7, 0, 0);
    __m512i words = _mm512_mullo_epi16(values, scales);
    if (odd) words = _mm512_srai_epi16(_mm512_add_epi16(words, _mm512_set1_epi16(1)), 1);
    const __m512i table = _mm512_xor_si512(_mm512_packs_epi16(words, words), _mm512_set1_epi8(-128));
    const __m512i q = _mm512_shuffle_epi8(table, codes);
    _mm512_storeu_si512(y, _mm512_maskz_permutexvar_epi64(0x33, low, q));
    _mm512_storeu_si512(y + 2, _mm512_maskz_permutexvar_epi64(0x33, high, q));
}

AGK_INLINE __m512i eight_words(short a, short b, short c, short d, short e, short f, short g, short h)
{
    return _mm512_broadcast_i32x4(_mm_setr_epi16(a, b, c, d, e, f, g, h));
}

/* Word 4 z + L of 16 in all words of lane L. */
AGK_INLINE __m512i scales_of(__m256i words, int z)
{
    const __m512i at = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_setr_m128i(_mm_set1_epi16((short)(4 * z)), _mm_set1_epi16((short)(4 * z + 1)))),
        _mm256_setr_m128i(_mm_set1_epi16((short)(4 * z + 2)), _mm_set1_epi16((short)(4 * z + 3))), 1);
    return _mm512_permutexvar_epi16(at, _mm512_castsi256_si512(words));
}

/* 32 bytes twice, each shifted right by its own count. */
AGK_INLINE __m512i shifted(__m256i bytes, int first, int second)
{
    const __m512i counts = _mm512_inserti64x4(_mm512_set1_epi16((short)first), _mm256_set1_epi16((short)second), 1);
    return _mm512_srlv_epi16(_mm512_broadcast_i64x4(bytes), counts);
}

AGK_INLINE __m256i load_32(const uint8_t *x)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)x);
}

AGK_INLINE void row_of_q2_k(const agk_block_q2_k *x, agk_bytes_row *y)
{
    _Alignas(32) int16_t minimum[16];
    const __m256i scales = _mm256_cvtepi8_epi16(v_bits(v_bytes(x->scales), 0, 15));
    _mm256_store_si256((__m256i *)(void *)minimum, _mm256_cvtepi8_epi16(v_bits(v_bytes(x->scales), 4, 15)));
    AGK_UNROLL for (int z = 0; z < 4; ++z)
    {
        const __m512i bits = shifted(load_32(x->qs + z / 2 * 32), z % 2 * 4, z % 2 * 4 + 2);
        const __m512i codes = _mm512_and_si512(bits, _mm512_set1_epi8(3));
        put_64(y + 4 * z, false, codes, eight_words(0, 1, 2, 3, 0, 0, 0, 0), scales_of(scales, z));
    }
    AGK_UNROLL for (int i = 0; i < 16; i += 2) memcpy(y[i].times, minimum + i, sizeof y->times);
    y->d = v_half(x->d);
    y->step = v_half(x->m);
}

AGK_INLINE void row_of_q3_k(const agk_block_q3_k *x, agk_bytes_row *y)
{
    const __m256i scales = _mm256_cvtepi8_epi16(_mm_sub_epi8(_mm_set1_epi8(32), v_scales_q3_k(x)));
    const __m256i high = load_32(x->hmask), raised = _mm256_slli_epi16(high, 2);
    AGK_UNROLL for (int z = 0; z < 4; ++z)
    {
        const __m512i bits = shifted(load_32(x->qs + z / 2 * 32), z % 2 * 4, z % 2 * 4 + 2);
        const __m512i third = z < 2 ? shifted(raised, 2 * z, 2 * z + 1) : shifted(high, 2 * z - 2, 2 * z - 1);
        const __m512i low = _mm512_and_si512(bits, _mm512_set1_epi8(3));
        const __m512i codes = _mm512_ternarylogic_epi32(third, _mm512_set1_epi8(4), low, 0xea); /* third & 4 | low */
        put_64(y + 4 * z, false, codes, eight_words(-4, -3, -2, -1, 0, 1, 2, 3), scales_of(scales, z));
    }
    y->d = -v_half(x->d);
}

/* 64 numbers of iq1, eight times as large: 8 * point + 1, or - 1 where the bit of the eight is set, times scales. */
AGK_INLINE void put_iq1(agk_bytes_row *y, const uint16_t points[8], __mmask8 down, __m512i scales)
{
    __m512i grid = _mm512_castsi128_si512(v_two_points(agk_iq1_grid[points[0]], agk_iq1_grid[points[1]]));
    grid = _mm512_inserti32x4(grid, v_two_points(agk_iq1_grid[points[2]], agk_iq1_grid[points[3]]), 1);
    grid = _mm512_inserti32x4(grid, v_two_points(agk_iq1_grid[points[4]], agk_iq1_grid[points[5]]), 2);
    grid = _mm512_inserti32x4(grid, v_two_points(agk_iq1_grid[points[6]], agk_iq1_grid[points[7]]), 3);
    const __m512i three = _mm512_and_si512(grid, _mm512_set1_epi8(3)); /* 0, 1 or, for -1, 3 */
    const __m512i codes = _mm512_mask_or_epi64(three, down, three, _mm512_set1_epi8(4));
    put_64(y, true, codes, eight_words(1, 9, 0, -7, -1, 7, 0, -9), scales);
}

/* Twice the low three bits, plus one. */
AGK_INLINE __m512i odd_scales(__m512i x)
{
    const __m512i two = _mm512_and_si512(_mm512_add_epi16(x, x), _mm512_set1_epi16(14));
    return _mm512_or_si512(two, _mm512_set1_epi16(1));
}

AGK_INLINE void row_of_iq1_s(const agk_block_iq1_s *x, agk_bytes_row *y)
{
    const __m128i qh = v_bytes(x->qh);
    const int down = _mm_movemask_epi8(_mm_packs_epi16(qh, qh));
    /* each word twice: one scale for two pieces */
    const __m256i pairs = _mm256_setr_m128i(_mm_unpacklo_epi16(qh, qh), _mm_unpackhi_epi16(qh, qh));
    const __m256i scales = _mm256_srli_epi16(pairs, 12);
    AGK_UNROLL for (int z = 0; z < 4; ++z)
    {
        const unsigned a = x->qh[2 * z], b = x->qh[2 * z + 1];
        const uint8_t *k = x->qs + 8 * z;
        const uint16_t points[8] = {(uint16_t)(k[0] | (a & 7) << 8),      (uint16_t)(k[1] | (a >> 3 & 7) << 8),
                                    (uint16_t)(k[2] | (a >> 6 & 7) << 8), (uint16_t)(k[3] | (a >> 9 & 7) << 8),
                                    (uint16_t)(k[4] | (b & 7) << 8),      (uint16_t)(k[5] | (b >> 3 & 7) << 8),
                                    (uint16_t)(k[6] | (b >> 6 & 7) << 8), (uint16_t)(k[7] | (b >> 9 & 7) << 8)};
        const __mmask8 of = (__mmask8)((down >> 2 * z & 1) * 15 | (down >> (2 * z + 1) & 1) * 240);
        put_iq1(y + 4 * z, points, of, odd_scales(scales_of(scales, z)));
    }
    y->d = v_half(x->d) * 0.25f; /* twice an eighth */
}

AGK_INLINE void row_of_iq1_m(const agk_block_iq1_m *x, agk_bytes_row *y)
{
    uint16_t w[4], points[32];
    memcpy(w, x->scales, sizeof w);
    agk_iq1_m_points(x, points);
    AGK_IN_MEMORY(points);
    const __m128i qh = v_bytes(x->qh), low = _mm_slli_epi16(qh, 4); /* the fourth bit of each nibble is its sign */
    const uint32_t down = (uint32_t)_mm_movemask_epi8(_mm_unpacklo_epi8(low, qh)) |
                          (uint32_t)_mm_movemask_epi8(_mm_unpackhi_epi8(low, qh)) << 16;
    const __m256i counts = _mm256_set1_epi64x(0x0009000600030000);
    const __m256i words =
        _mm256_permutexvar_epi16(_mm256_setr_epi16(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                                 _mm256_castsi128_si256(_mm_loadl_epi64((const __m128i *)(const void *)x->scales)));
    const __m256i scales = _mm256_srlv_epi16(words, counts);
    AGK_UNROLL for (int z = 0; z < 4; ++z)
    {
        put_iq1(y + 4 * z, points + 8 * z, (__mmask8)(down >> 8 * z), odd_scales(scales_of(scales, z)));
    }
    y->d = v_half(v_scale_iq1_m(w)) * 0.25f;
}

void agk_mm_bytes_scaled_rows_avx512(int type, bool words, const void *src, void *out, int64_t n)
{
    agk_bytes_row *y = out;
#define AGK_ROWS(TYPE, name) \
    case AGK_##TYPE: \
        for (int64_t i = 0; i < n / 256; ++i) row_of_##name((const agk_block_##name *)src + i, y + 16 * i); \
        break;
    switch (type) {
        AGK_ROWS(Q2_K, q2_k)
        AGK_ROWS(Q3_K, q3_k)
        AGK_ROWS(IQ1_S, iq1_s)
        AGK_ROWS(IQ1_M, iq1_m)
    default: agk_mm_bytes_rows_avx512(type, words, src, out, n); /* tq1_0, tq2_0 */
    }
}
