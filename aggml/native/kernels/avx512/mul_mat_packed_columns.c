/* Quantizes columns of f32 and lays them out for matrix tiles (mul_mat_packed.h), AVX-512: 64 k of 8 columns at a time,
 * in registers. At the end: the packing of rows (mul_mat_packed_group.h).
 *
 * 16 blocks of 32 are a vector of maxima and scales; sums come from products with ones, by the same tree. The result
 * is bit for bit that of agk_mm_col_q8 and agk_packed_tiles. 8 columns, 512 k, in cache: 2.61 -> 0.76 us. Columns are
 * used only through lines that need AGK_AVX512_VNNI. */
#include <immintrin.h>

#include "kernels/inline.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat_packed.h"
#include "mul_mat_packed_group.h"
#include "round.h"

enum { COLUMNS = 8, UNIT = AGK_PACKED_UNIT };

/* What is known of 8 columns, each a vector, its lanes brought together: of [column][4 quarters][4 lanes] the vectors
 * [quarter][column 0..3] and [quarter][column 4..7], by 2 of 3 steps. */
#define AGK_TREE(type, suffix, wide, join) \
    AGK_INLINE void tree_##suffix(const type x[COLUMNS], type found[2]) \
    { \
        AGK_UNROLL for (int i = 0; i < 2; ++i) \
        { \
            const type *c = x + 4 * i; \
            const type ab = \
                join(_mm512_unpacklo_##suffix(c[0], c[1]), _mm512_unpackhi_##suffix(c[0], c[1])); /* a b a b */ \
            const type cd = join(_mm512_unpacklo_##suffix(c[2], c[3]), _mm512_unpackhi_##suffix(c[2], c[3])); \
            found[i] = join(wide(unpacklo, ab, cd), wide(unpackhi, ab, cd)); /* a b c d */ \
        } \
    }
#define AGK_DOUBLES(name, x, y) _mm512_castpd_ps(_mm512_##name##_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)))
#define AGK_QUADS(name, x, y) _mm512_##name##_epi64(x, y)
AGK_TREE(__m512, ps, AGK_DOUBLES, _mm512_max_ps)
AGK_TREE(__m512i, epi32, AGK_QUADS, _mm512_add_epi32)

/* Scales of 16 blocks, [half][column], from the largest magnitude in each; `inverse` gets the factors for their
 * elements. */
AGK_INLINE __m512 scales(const __m512 sizes[COLUMNS], float inverse[16])
{
    __m512 m[2];
    tree_ps(sizes, m);
    const __m512 even = _mm512_shuffle_f32x4(m[0], m[1], 0x88), odd = _mm512_shuffle_f32x4(m[0], m[1], 0xdd);
    __m512 d = _mm512_max_ps(even, odd); /* halves of columns 0..3, of 4..7 */
    d = _mm512_div_ps(_mm512_shuffle_f32x4(d, d, 0xd8), _mm512_set1_ps(127.0f));
    const __mmask16 some = _mm512_cmp_ps_mask(d, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    _mm512_store_ps(inverse, _mm512_maskz_div_ps(some, _mm512_set1_ps(1.0f), d));
    return agk_col_scales(d);
}

/* Two blocks as bytes, in an order of words that `in_order` corrects. */
AGK_INLINE __m512i quantized(const float *x, float first, float second)
{
    const __m512 a = _mm512_set1_ps(first), b = _mm512_set1_ps(second);
    const __m512i low = _mm512_packs_epi32(agk_round_fitting(_mm512_mul_ps(_mm512_loadu_ps(x), a)),
                                           agk_round_fitting(_mm512_mul_ps(_mm512_loadu_ps(x + 16), a)));
    const __m512i high = _mm512_packs_epi32(agk_round_fitting(_mm512_mul_ps(_mm512_loadu_ps(x + 32), b)),
                                            agk_round_fitting(_mm512_mul_ps(_mm512_loadu_ps(x + 48), b)));
    return _mm512_packs_epi16(low, high);
}

/* Sums of quarters of 8 columns in the form that a product needs: corrections for an offset, or factors of a
 * minimum. */
AGK_INLINE void put_sums(const agk_packed_layout *layout, const __m512i totals[COLUMNS], __m512 d, char *out,
                         int64_t width)
{
    const bool minimum = layout->sums == AGK_MINIMUM_32 || layout->sums == AGK_MINIMUM_16;
    __m512i s[2], rows[2]; /* of a half: [first 16 k or all 32][column], [last 16 k or nothing][column] */
    tree_epi32(totals, s);
    AGK_UNROLL for (int half = 0; half < 2; ++half)
    {
        __m512i x = half == 0 ? _mm512_shuffle_i32x4(s[0], s[1], 0x44) : _mm512_shuffle_i32x4(s[0], s[1], 0xee);
        x = _mm512_shuffle_i32x4(x, x, 0xd8);
        if (!agk_packed_halves(layout)) {
            const __m256i all = _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
            x = _mm512_zextsi256_si512(all);
        }
        const __m512 scale = half == 0 ? _mm512_shuffle_f32x4(d, d, 0x44) : _mm512_shuffle_f32x4(d, d, 0xee);
        rows[half] = minimum ? _mm512_castps_si512(_mm512_mul_ps(scale, _mm512_cvtepi32_ps(x)))
                             : _mm512_mullo_epi32(x, _mm512_set1_epi32(-layout->offset));
        for (int h = 0; h < 2; ++h) {
            const __m256i row = h == 0 ? _mm512_castsi512_si256(rows[half]) : _mm512_extracti64x4_epi64(rows[half], 1);
            _mm256_storeu_si256((__m256i *)(void *)(out + 4 * (2 * half + h) * width), row);
        }
    }
}

/* A unit of columns `first` .. + 7: 64 elements from each of x on. */
AGK_INLINE void lay_unit(const agk_packed_layout *layout, const float *const x[COLUMNS], int64_t first, int64_t width,
                         char *out)
{
    const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _Alignas(64) float inverse[16];
    __m512 sizes[COLUMNS];
    __m512i totals[COLUMNS];
    AGK_UNROLL for (int j = 0; j < COLUMNS; ++j)
    {
        __m512 m[2];
        AGK_UNROLL for (int half = 0; half < 2; ++half)
        {
            const __m512 zero = _mm512_setzero_ps(); /* max(x, 0) is 0 if x is NaN */
            m[half] = _mm512_max_ps(_mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(x[j] + 32 * half)), zero),
                                    _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(x[j] + 32 * half + 16)), zero));
        }
        sizes[j] = _mm512_max_ps(_mm512_shuffle_f32x4(m[0], m[1], 0x44), _mm512_shuffle_f32x4(m[0], m[1], 0xee));
    }
    const __m512 d = scales(sizes, inverse);
    char *floats = out + 4 * first;
    _mm256_storeu_ps((float *)(void *)floats, _mm512_castps512_ps256(d));
    _mm256_storeu_ps((float *)(void *)(floats + 4 * width), _mm512_extractf32x8_ps(d, 1));
    char *tiles = out + 24 * width;
    const int scales_of_column = agk_packed_halves(layout) ? 4 : 2, columns = 16 / scales_of_column;
    AGK_UNROLL for (int j = 0; j < COLUMNS; ++j)
    {
        const __m512i q = quantized(x[j], inverse[j], inverse[COLUMNS + j]);
        totals[j] =
            _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_permutexvar_epi32(in_order, q));
        char *tile = tiles + (first + j) / columns * AGK_PACKED_TILE + (first + j) % columns * UNIT;
        for (int i = 0; i < scales_of_column; ++i) {
            const __mmask16 words = (__mmask16)(scales_of_column == 2 ? 0xffu << 8 * i : 0xfu << 4 * i);
            _mm512_storeu_si512(tile + i * columns * UNIT, _mm512_maskz_permutexvar_epi32(words, in_order, q));
        }
    }
    put_sums(layout, totals, d, floats + 8 * width, width);
}

void agk_mm_packed_columns_avx512(const agk_packed_layout *layout, int64_t n, int64_t width, int64_t k,
                                  const char *columns, size_t stride, char *out)
{
    static const float zeros[UNIT];
    const size_t bytes = agk_packed_unit_bytes(layout, width);
    float rest[COLUMNS][UNIT];
    for (int64_t i = 0; i < k; i += UNIT, out += bytes) {
        for (int64_t first = 0; first < width; first += COLUMNS) {
            const float *x[COLUMNS];
            for (int64_t j = 0; j < COLUMNS; ++j) {
                x[j] = zeros;
                if (first + j >= n) continue;
                x[j] = (const float *)(const void *)(columns + (size_t)(first + j) * stride) + i;
                if (k - i >= UNIT) continue;
                memset(rest[j], 0, sizeof rest[j]); /* only half a unit is left */
                memcpy(rest[j], x[j], (size_t)(k - i) * sizeof(float));
                x[j] = rest[j];
            }
            lay_unit(layout, x, first, width, out);
        }
    }
}

/* Other types, and rows at the end of a matrix, are left to plain C. */
void agk_mm_packed_group_avx512(int type, const char *rows, size_t stride, int64_t n, int64_t k, char *out)
{
    const agk_packed_layout *layout = agk_packed_layout_of(type);
    const size_t size = agk_traits(type)->type_size;
    bool served = n == ROWS;
    for (int64_t i = 0; i < k && served; i += layout->k)
        served = put_block(type, rows + (size_t)(i / layout->k) * size, stride,
                           out + (size_t)(i / layout->k) * layout->bytes,
                           out + (size_t)(i / layout->k) * layout->bytes + layout->data);
    if (!served) agk_mm_packed_group_scalar(type, rows, stride, n, k, out);
}
