/* The first elements of a descending order, AVX-512, for small k. What kernels/scalar/sort.c gives.
 *
 * Few branches depend on the values. The candidates, mostly fewer than 16, are ranked in one vector. Single rows on a
 * Zen 4, plain C and here: 8 of 128 elements 305 and 84 ns, 6 of 64 185 and 70, 16 of 128 451 and 183, 8 of 4096 3043
 * and 552. */
#include <immintrin.h>

#include "kernels/sort.h"
#include "table/kernel_types.h"

enum { LANES = 16, VECTORS = AGK_SORT_CANDIDATES / LANES };

static inline __mmask16 mask_of(int64_t n)
{
    return n >= LANES ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1);
}

/* The k-th of the largest elements of `vectors` x 16 lanes. NaN is skipped, since vmaxps gives its second operand. */
static inline __m512 bound_of(int64_t n, int64_t k, const char *x, const int vectors)
{
    const __m512 least = _mm512_set1_ps(-INFINITY);
    __m512 most[2] = {least, least};
    float all[2 * LANES];
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        most[0] = _mm512_max_ps(_mm512_loadu_ps(x + 4 * i), most[0]);
        most[1] = _mm512_max_ps(_mm512_loadu_ps(x + 4 * (i + LANES)), most[1]);
    }
    for (int v = 0; i < n; i += LANES, v ^= 1)
        most[v] = _mm512_max_ps(_mm512_mask_loadu_ps(least, mask_of(n - i), x + 4 * i), most[v]);
    if (vectors == 1) most[0] = _mm512_max_ps(most[0], most[1]);
    __m512i above[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    const __m512i minus_one = _mm512_set1_epi32(-1);
    for (int v = 0; v < vectors; ++v) _mm512_storeu_ps(all + v * LANES, most[v]);
    for (int i1 = 0; i1 < vectors * LANES; ++i1) {
        for (int v = 0; v < vectors; ++v) {
            const __mmask16 other = _mm512_cmp_ps_mask(_mm512_set1_ps(all[i1]), most[v], _CMP_GE_OQ);
            above[v] = _mm512_mask_sub_epi32(above[v], other, above[v], minus_one);
        }
    }
    __m512 bound = least;
    for (int v = 0; v < vectors; ++v)
        bound = _mm512_mask_max_ps(bound, _mm512_cmpge_epi32_mask(above[v], _mm512_set1_epi32((int)k)), bound, most[v]);
    return _mm512_set1_ps(_mm512_reduce_max_ps(bound));
}

/* Values as integers that ascend where they descend: equal for both zeros. There is no NaN. */
static inline __m512i descending(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(_mm512_add_ps(x, _mm512_setzero_ps())); /* -0 becomes 0 */
    const __m512i flip = _mm512_and_si512(_mm512_srai_epi32(bits, 31), _mm512_set1_epi32(INT32_MAX));
    return _mm512_xor_si512(_mm512_xor_si512(bits, flip), _mm512_set1_epi32(-1));
}

/* Stores the indices of `found` candidates by their ranks; equal ones keep their order. */
static inline void by_rank(int64_t found, int32_t *sorted, const float *values, const int32_t *places,
                           const int vectors)
{
    const __m512i one = _mm512_set1_epi32(1);
    __m512i limit[VECTORS], rank[VECTORS];
    int32_t orders[AGK_SORT_CANDIDATES], ranks[AGK_SORT_CANDIDATES];
    for (int v = 0; v < vectors; ++v) {
        const __mmask16 there = mask_of(found - v * LANES > 0 ? found - v * LANES : 0);
        limit[v] = _mm512_mask_blend_epi32(there, _mm512_set1_epi32(INT32_MAX),
                                           descending(_mm512_loadu_ps(values + v * LANES)));
        _mm512_storeu_si512(orders + v * LANES, limit[v]);
        rank[v] = _mm512_setzero_si512();
    }
    /* Candidate i comes before those behind it if its order is not greater, and before those ahead of it, whose limits
     * were lowered, if it is less. */
    for (int i = 0; i < vectors * LANES; ++i) {
        const __m512i other = _mm512_set1_epi32(orders[i]);
        limit[i / LANES] = _mm512_mask_sub_epi32(limit[i / LANES], (__mmask16)(1u << i % LANES), limit[i / LANES], one);
        for (int v = 0; v < vectors; ++v)
            rank[v] = _mm512_mask_add_epi32(rank[v], _mm512_cmple_epi32_mask(other, limit[v]), rank[v], one);
    }
    for (int v = 0; v < vectors; ++v) _mm512_storeu_si512(ranks + v * LANES, rank[v]);
    for (int i = 0; i < vectors * LANES; ++i) sorted[ranks[i]] = places[i];
}

bool agk_sort_top_k_avx512(int64_t n, int64_t k, const void *row, int32_t *out)
{
    const char *x = row;
    const __m512 bound = k <= LANES / 2 ? bound_of(n, k, x, 1) : bound_of(n, k, x, 2);
    float values[AGK_SORT_CANDIDATES + LANES];
    int32_t places[AGK_SORT_CANDIDATES + LANES], sorted[AGK_SORT_CANDIDATES];
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    int64_t found = 0;
    for (int64_t i = 0; i < n; i += LANES) {
        const __m512 here = _mm512_maskz_loadu_ps(mask_of(n - i), x + 4 * i);
        const __mmask16 reach = _mm512_mask_cmp_ps_mask(mask_of(n - i), here, bound, _CMP_GE_OQ);
        if (n > 512 && reach == 0) continue;
        _mm512_storeu_ps(values + found, _mm512_maskz_compress_ps(reach, here));
        _mm512_storeu_si512(places + found,
                            _mm512_maskz_compress_epi32(reach, _mm512_add_epi32(lanes, _mm512_set1_epi32((int)i))));
        found += __builtin_popcount(reach);
        if (found > AGK_SORT_CANDIDATES) return false;
    }
    if (found < k) return false;
    if (found <= LANES)
        by_rank(found, sorted, values, places, 1);
    else
        by_rank(found, sorted, values, places, 2);
    memcpy(out, sorted, (size_t)k * sizeof *out);
    return true;
}
