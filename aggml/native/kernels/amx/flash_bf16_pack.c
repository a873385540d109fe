/* flash_attn_ext of bf16 on AMX: packs keys and values of a head to panels, once for all tiles that read them. Not
 * here: the multiplication (flash_bf16.c). */
#include "kernels/flash.h"
#include "tiles.h"

#include "kernels/avx512/math.h"

enum { TILE = 1024 };

/* 32 elements from x, of which the first n exist; the others are zero. */
AGK_INLINE __m512i load_32(bool floats, const char *x, int64_t n)
{
    const __mmask32 there = n <= 0 ? 0 : n < 32 ? (1u << n) - 1 : ~0u;
    if (!floats) return _mm512_maskz_loadu_epi16(there, x);
    const __m512 low = _mm512_maskz_loadu_ps((__mmask16)there, x),
                 high = _mm512_maskz_loadu_ps((__mmask16)(there >> 16), x + 64);
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* Keys transposed: [d / 32][2 halves][16 pairs of d][16 keys][2]. */
AGK_INLINE void pack_keys(bool floats, int64_t n, int64_t d, const char *k, int64_t step, char *out)
{
    const int64_t size = floats ? 4 : 2;
    for (int64_t i = 0; i < d; i += 32) {
        for (int64_t h = 0; h < 32; h += 16, out += TILE) {
            __m512i r[16];
            AGK_UNROLL for (int j = 0; j < 16; ++j)
            {
                r[j] = _mm512_setzero_si512();
                if (h + j < n) r[j] = load_32(floats, k + (h + j) * step + i * size, d - i);
            }
            agk_transpose16(r);
            AGK_UNROLL for (int j = 0; j < 16; ++j) _mm512_store_si512(out + 64 * j, r[j]);
        }
    }
}

/* Values in their order, in pairs of keys: [dv / 32][2 halves][16 pairs][16 dv][2], with v_step from one 32 of dv to
 * the next. */
AGK_INLINE bool pack_values(bool floats, int64_t n, int64_t dv, const char *v, int64_t step, char *out, size_t v_step)
{
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                         5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const __m512i sign = _mm512_set1_epi16(0x7fff), most = _mm512_set1_epi16((127 + 64) << 7);
    const int64_t size = floats ? 4 : 2;
    __mmask32 bad = 0;
    for (int64_t i = 0; i < dv; i += 32, out += v_step) {
        for (int64_t j = 0; j < 32; j += 2) {
            __m512i a = _mm512_setzero_si512(), b = a;
            if (j < n) a = load_32(floats, v + j * step + i * size, dv - i);
            if (j + 1 < n) b = load_32(floats, v + (j + 1) * step + i * size, dv - i);
            const __m512i larger = _mm512_max_epi16(_mm512_and_si512(a, sign), _mm512_and_si512(b, sign));
            bad |= _mm512_cmpgt_epi16_mask(larger, most);
            _mm512_store_si512(out + 32 * j, _mm512_permutex2var_epi16(a, low, b));
            _mm512_store_si512(out + TILE + 32 * j, _mm512_permutex2var_epi16(a, high, b));
        }
    }
    return bad == 0;
}

bool agk_flash_bf16_pack_amx(bool floats, int64_t n, int64_t d, const void *k, int64_t k_step, int64_t dv,
                             const void *v, int64_t v_step, void *k_out, void *v_out, size_t v_out_step)
{
    if (floats) {
        pack_keys(true, n, d, k, k_step, k_out);
        return pack_values(true, n, dv, v, v_step, v_out, v_out_step);
    }
    pack_keys(false, n, d, k, k_step, k_out);
    return pack_values(false, n, dv, v, v_step, v_out, v_out_step);
}
