/* flash_attn_ext of a few rows (decoding) over keys in q8_0 or q4_0, AVX-512 with VNNI: products of bytes.
 *
 * Results differ from plain C by at most 2e-6 of the largest value that a row attends to. Not here: values and other
 * types (flash_narrow.c), the walk over heads and blocks (lower/attention/flash_decode.c). */
#include "flash_codes.h"

enum { ASKS = 2 };

static const float least = 1e-30f; /* a query whose elements are all smaller than this counts as 0 */

void agk_flash_codes_begin_avx512(const agk_flash_tile *t)
{
    const codes c = codes_of(t);
    const float bias = bias_of(t->k_type);
    v_flash_begin_narrow(t);
    for (int64_t r = 0; r < t->n_rows; ++r) {
        const float *q = (const float *)(const void *)(t->q + r * t->q_step);
        /* bits of the largest absolute value; those of infinity and NaN are larger */
        __m512i bits = _mm512_setzero_si512();
        for (int64_t i = 0; i < t->d; i += VF) {
            const __m512i x = _mm512_and_si512(_mm512_castps_si512(v_load(q + i)), _mm512_set1_epi32(0x7FFFFFFF));
            bits = _mm512_max_epu32(bits, x);
        }
        const uint32_t top = _mm512_reduce_max_epu32(bits);
        float max;
        memcpy(&max, &top, sizeof max);
        const bool finite = top < 0x7F800000u;
        const float up = finite && max > least ? LARGEST / max : 0.0f;
        c.scale[r] = finite ? (max > least ? max / LARGEST : 0.0f) : __builtin_nanf("");
        for (int64_t b = 0; b < t->d / V_BLOCK; ++b) {
            int32_t sum = 0;
            for (int64_t i = b * V_BLOCK; i < (b + 1) * V_BLOCK && finite; i += VF) {
                const __m512i x = _mm512_cvtps_epi32(v_load(q + i) * v_set(up));
                sum += _mm512_reduce_add_epi32(x);
                _mm512_storeu_si512(c.planes + r * t->d + i, planes_of(x));
            }
            c.off[r * (t->d / V_BLOCK) + b] = -bias * (float)sum;
        }
        if (!finite) memset(c.planes + r * t->d, 0, (size_t)t->d * sizeof(int32_t));
    }
}

/* Adds the products of 16 keys' codes of a block with some rows, times scales, to s. */
AGK_INLINE void add_rows(int rows, const __m512i x[DWORDS], const int32_t *q, int64_t d, const float *off,
                         int64_t blocks, vf scale, lines *l, vf *s)
{
    __m512i sum[2][PLANES];
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) sum[r][0] = sum[r][1] = sum[r][2] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int i = 0; i < DWORDS; ++i) {
#pragma GCC unroll 2
        for (int r = 0; r < rows; ++r) add_planes(sum[r], x[i], q + r * d + 4 * i);
        if (i % ASKS == ASKS - 1) {
            vf tie = _mm512_castsi512_ps(sum[0][0]);
            ask(l, &tie);
            sum[0][0] = _mm512_castps_si512(tie);
        }
    }
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) s[r] = v_fma(joined(sum[r]) + v_set(off[r * blocks]), scale, s[r]);
}

/* Products of 16 keys with all rows, to s[row][16]. */
AGK_INLINE void dots(int type, const agk_flash_tile *t, const codes *c, const char *const k[TURNED], lines *l, vf *s)
{
    const int64_t blocks = t->d / V_BLOCK, size = v_at(type, NULL, V_BLOCK) - (const char *)NULL;
    for (int64_t r = 0; r < t->n_rows; ++r) s[r] = v_zero();
    for (int64_t b = 0; b < blocks; ++b) {
        __m512i x[DWORDS];
        turned(type, k, b * size, x);
        const vf scale = turned_scales(type, k, b * size);
        const int32_t *q = c->planes + b * V_BLOCK;
        const float *off = c->off + b;
        int64_t r = 0;
        for (; r + 2 <= t->n_rows; r += 2) {
            add_rows(2, x, q + r * t->d, t->d, off + r * blocks, blocks, scale, l, s + r);
        }
        if (r < t->n_rows) add_rows(1, x, q + r * t->d, t->d, off + r * blocks, blocks, scale, l, s + r);
    }
}

/* Products of n keys with all rows are stored to S of the state, [rows / 4][keys / 4][4 rows][4 keys]. */
AGK_INLINE void all_dots(int type, const agk_flash_tile *t, int64_t n, const char *k)
{
    const agk_flash_narrow f = agk_flash_narrow_of(t);
    const codes c = codes_of(t);
    lines l =
        lines_of(t->k_ahead, n, (n + TURNED - 1) / TURNED * (t->d / V_BLOCK) * ((t->n_rows + 1) / 2) * (DWORDS / ASKS));
    for (int64_t j = 0; j < n; j += TURNED) {
        const char *at[TURNED];
        vf s[AGK_FLASH_TILE + ROWS];
        /* missing keys repeat the last one */
        for (int h = 0; h < TURNED; ++h) at[h] = k + (j + h < n ? j + h : n - 1) * t->k_step;
        dots(type, t, &c, at, &l, s);
        store_turned(t, &c, s, f.s + QUAD * j);
    }
}

/* -- a block */

/* From products in S to probabilities in S (flash_narrow.c), four rows at a time. */
static void probabilities(const agk_flash_tile *t, int64_t row, int64_t first, int64_t n)
{
    const agk_flash_narrow f = agk_flash_narrow_of(t);
    const int rows = t->n_rows - row < ROWS ? (int)(t->n_rows - row) : ROWS;
    float *p = f.s + row * AGK_FLASH_KEYS, s[ROWS * AGK_FLASH_KEYS];
    const vf old = by_row(f.max + row, rows);
    logits g = logits_begin(t, &f, row, first, n, rows);
    vf max = old, sum = v_zero();
    for (int64_t j = 0; j < n; j += QUAD) add_quad(&g, j, v_load(p + QUAD * j), s, p, &max, &sum);
    logits_end(&g, &f, old, max, sum, s, p);
}

void agk_flash_codes_block_avx512(const agk_flash_tile *t, int64_t first, int64_t n, const void *k, const void *v)
{
    if (t->k_type == AGK_Q8_0)
        all_dots(AGK_Q8_0, t, n, k);
    else
        all_dots(AGK_Q4_0, t, n, k);
    for (int64_t r = 0; r < t->n_rows; r += ROWS) probabilities(t, r, first, n);
    agk_flash_narrow_values(t, n, v);
}
