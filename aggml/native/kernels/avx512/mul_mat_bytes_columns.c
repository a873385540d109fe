/* Columns as units of bytes (mul_mat_bytes.h), AVX-512 VNNI: columns that are bytes already (agk_mm_col_q8), and
 * columns of floats, which are transposed first and then quantized 16 at a time. The bytes are the same. Not here:
 * columns that the product before wrote itself (mul_mat_panels_end.c). */
#include "mul_mat_blocks.h"
#include "mul_mat_bytes_unit.h"

void agk_mm_bytes_columns_avx512(bool halves, bool wide, int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    agk_bytes_unit *y = out;
    const __m512i ones = _mm512_set1_epi8(1), zero = _mm512_setzero_si512();
    for (int64_t i = 0; i < k / AGK_MM_BLOCK; i += 2) {
        _Alignas(64) float d[2][16] = {{0}};
        __m512i r[16];
        agk_transpose_q8(b, ldb, cols, i / 2, r, d);
        AGK_UNROLL for (int part = 0; part < 2; ++part)
        {
            if (i + part >= k / AGK_MM_BLOCK) break;
            const __m512 scale = _mm512_load_ps(d[part]);
            __m512i sum[2] = {zero, zero};
            AGK_UNROLL for (int v = 0; v < 8; ++v)
            {
                sum[v / 4] = _mm512_dpbusd_epi32(sum[v / 4], ones, r[8 * part + v]);
                _mm512_storeu_si512(y->q[v], r[8 * part + v]);
            }
            if (!halves) sum[0] = _mm512_add_epi32(sum[0], sum[1]);
            _mm512_storeu_ps(y->d, scale);
            AGK_UNROLL for (int h = 0; h < 2; ++h)
            {
                _mm512_storeu_si512(y->start[h], _mm512_sub_epi32(zero, _mm512_slli_epi32(sum[h], 7)));
                const __m512 floats = _mm512_cvtepi32_ps(sum[h]);
                _mm512_storeu_ps(y->sum[h], wide ? floats : _mm512_mul_ps(scale, floats));
            }
            ++y;
        }
    }
}

/* 16 k of up to 16 columns of floats: 16 rows. */
AGK_INLINE __m512 transposed(const char *b, size_t ldb, int64_t cols, float (*x)[16], __m512 most)
{
    __m512i r[16];
    AGK_UNROLL for (int j = 0; j < 16; ++j)
    {
        r[j] = j < cols ? _mm512_loadu_si512(b + (size_t)j * ldb) : _mm512_setzero_si512();
    }
    agk_transpose16(r);
    AGK_UNROLL for (int i = 0; i < 16; ++i)
    {
        most = agk_unit_most(most, _mm512_castsi512_ps(r[i]));
        _mm512_store_si512(x[i], r[i]);
    }
    return most;
}

AGK_INLINE void units(bool halves, bool wide, int64_t k, int64_t cols, const char *b, size_t ldb, agk_bytes_unit *y)
{
    enum { WIDE = 256 };
    _Alignas(64) float x[WIDE][16];
    const int64_t block = wide ? WIDE : AGK_MM_BLOCK;
    for (int64_t i = 0; i < k; i += block) {
        __m512 most = _mm512_setzero_ps();
        for (int64_t e = 0; e < block; e += 16) most = transposed(b + 4 * (i + e), ldb, cols, x + e, most);
        const agk_unit_scales scales = agk_unit_scales_of(most);
        for (int64_t e = 0; e < block; e += AGK_MM_BLOCK) agk_unit_put(halves, wide, x + e, scales, y++);
    }
}

void agk_mm_bytes_floats_avx512(bool halves, bool wide, int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    if (cols == 16) /* known to the compiler: no branches between loads */
        wide ? units(halves, true, k, 16, b, ldb, out) : units(halves, false, k, 16, b, ldb, out);
    else
        wide ? units(halves, true, k, cols, b, ldb, out) : units(halves, false, k, cols, b, ldb, out);
}
