/* flash_attn_ext of a few rows (decoding) over keys in q8_0 or q4_0, AVX-512 with VNNI: products of bytes.
 *
 * Results differ from plain C by at most 2e-6 of the largest value that a row attends to. Not here: values and other
 * types (flash_narrow.c), the walk over heads and blocks (lower/attention/flash_few.c). */
#include "flash_narrow.h"

/* A query is rounded to integers of 24 bits, which are three signed bytes (planes). So its products with 64 codes take
 * three `vpdpbusd`, where f32 takes four products and has to widen the codes first. An f32 has 24 bits, too: the error
 * of the integers has 5e-13 of the power of results, that of f32 1e-13; integers of 16 bits would have 5e-10 (256 keys,
 * 4 rows of 128).
 *
 * 16 keys are transposed in registers, once for all rows, so that a lane is a key: nothing is summed across lanes, and
 * the scales are a vector. vpdpbusd needs unsigned codes: 128 (8) is added to those of q8_0 (q4_0), and corrected for
 * by the sum of the query.
 *
 * Values stay f32: a probability times the scale of each block would have to be converted to bytes for every key,
 * which costs as much as three products save. */
enum { PLANES = 3, TURNED = 16, DWORDS = V_BLOCK / 4, ASKS = 2, LARGEST = 0x7F7F00, OFFSETS = 0x808080 };

static const float least = 1e-30f; /* a query whose elements are all smaller than this counts as 0 */

/* Queries of a tile as integers, stored behind the sums of values. For a row: its scale, the correction for each
 * block, and for each four elements four bytes of the lowest, the middle and the highest plane, and four unused
 * bytes. */
typedef struct codes {
    float *scale, *off;
    int32_t *planes;
} codes;

static inline codes codes_of(const agk_flash_tile *t)
{
    codes c = {.scale = agk_flash_narrow_of(t).o + t->n_rows * t->dv};
    c.off = c.scale + t->n_rows;
    c.planes = (int32_t *)(void *)(c.off + t->n_rows * (t->d / V_BLOCK));
    return c;
}

/* For each four integers: their four lowest bytes, the four above, and so on, as signed bytes that add up to them. */
AGK_INLINE __m512i planes_of(__m512i x)
{
    const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m512i offsets = _mm512_set1_epi32(OFFSETS);
    return _mm512_shuffle_epi8(_mm512_xor_si512(_mm512_add_epi32(x, offsets), offsets), order);
}

AGK_INLINE float bias_of(int type)
{
    return type == AGK_Q8_0 ? 128.0f : 8.0f;
}

/* The sum of each plane += four codes of each lane times the plane's four signed bytes in memory. */
AGK_INLINE void add_planes(__m512i sum[PLANES], __m512i x, const int32_t *y)
{
    __asm__("vpdpbusd %4%{1to16%}, %3, %0\n\tvpdpbusd %5%{1to16%}, %3, %1\n\tvpdpbusd %6%{1to16%}, %3, %2"
            : "+&v"(sum[0]), "+&v"(sum[1]), "+&v"(sum[2])
            : "v"(x), "m"(y[0]), "m"(y[1]), "m"(y[2]));
}

/* The total of three planes as floats. The lower two are added as integers: at most 2^30. */
AGK_INLINE vf joined(const __m512i sum[PLANES])
{
    const __m512i low = _mm512_add_epi32(_mm512_slli_epi32(sum[1], 8), sum[0]);
    return v_fma(_mm512_cvtepi32_ps(sum[2]), v_set(65536.0f), _mm512_cvtepi32_ps(low));
}

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

/* -- keys */

AGK_INLINE void turn(__m512i x[QUAD]) /* four dwords of four keys within each quarter */
{
    const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
    const __m512i c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
    x[0] = _mm512_unpacklo_epi64(a, c);
    x[1] = _mm512_unpackhi_epi64(a, c);
    x[2] = _mm512_unpacklo_epi64(b, d);
    x[3] = _mm512_unpackhi_epi64(b, d);
}

AGK_INLINE __m128i half_block(const char *at)
{
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}
AGK_INLINE __m512i two_blocks(const char *a, const char *b)
{
    const __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)a);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), _mm256_loadu_si256((const __m256i *)(const void *)b), 1);
}
AGK_INLINE __m512i four_halves(const char *a, const char *b, const char *c, const char *d)
{
    __m512i x = _mm512_castsi128_si512(half_block(a));
    x = _mm512_inserti32x4(x, half_block(b), 1);
    x = _mm512_inserti32x4(x, half_block(c), 2);
    return _mm512_inserti32x4(x, half_block(d), 3);
}

/* Codes of a block of 16 keys: lane j of x[i] has elements 4 i .. 4 i + 3 of key j. */
AGK_INLINE void turned(int type, const char *const k[TURNED], int64_t at, __m512i x[DWORDS])
{
    const __m512i low = _mm512_set1_epi8(0x0F);
    if (type == AGK_Q8_0) {
        at += (int64_t)offsetof(agk_block_q8_0, qs);
        __m512i y[2][QUAD];
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
#pragma GCC unroll 4
            for (int m = 0; m < QUAD; ++m) y[g][m] = two_blocks(k[8 * g + m] + at, k[8 * g + 4 + m] + at);
            turn(y[g]);
        }
#pragma GCC unroll 4
        for (int m = 0; m < QUAD; ++m) {
            const __m512i bias = _mm512_set1_epi8((char)0x80);
            x[m] = _mm512_xor_si512(_mm512_shuffle_i32x4(y[0][m], y[1][m], 0x88), bias);
            x[m + 4] = _mm512_xor_si512(_mm512_shuffle_i32x4(y[0][m], y[1][m], 0xDD), bias);
        }
    } else {
        at += (int64_t)offsetof(agk_block_q4_0, qs);
        __m512i y[QUAD];
#pragma GCC unroll 4
        for (int m = 0; m < QUAD; ++m) y[m] = four_halves(k[m] + at, k[4 + m] + at, k[8 + m] + at, k[12 + m] + at);
        turn(y);
#pragma GCC unroll 4
        for (int m = 0; m < QUAD; ++m) {
            x[m] = _mm512_and_si512(y[m], low);
            x[m + 4] = _mm512_and_si512(_mm512_srli_epi16(y[m], 4), low);
        }
    }
}

AGK_INLINE uint64_t four_scales(int type, const char *const k[QUAD], int64_t at)
{
    return scale_of(type, k[0] + at) | scale_of(type, k[1] + at) << 16 | scale_of(type, k[2] + at) << 32 |
           scale_of(type, k[3] + at) << 48;
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
        const __m256i halves =
            _mm256_set_epi64x((int64_t)four_scales(type, k + 12, b * size), (int64_t)four_scales(type, k + 8, b * size),
                              (int64_t)four_scales(type, k + 4, b * size), (int64_t)four_scales(type, k, b * size));
        const vf scale = _mm512_cvtph_ps(halves);
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
        for (int64_t r = 0; r < t->n_rows; r += ROWS) {
            vf x[ROWS];
#pragma GCC unroll 4
            for (int h = 0; h < ROWS; ++h) {
                const int64_t row = r + h < t->n_rows ? r + h : r;
                x[h] = s[row] * v_set(c.scale[row]);
            }
            const vf a = _mm512_shuffle_f32x4(x[0], x[1], 0x44), b = _mm512_shuffle_f32x4(x[0], x[1], 0xEE);
            const vf d = _mm512_shuffle_f32x4(x[2], x[3], 0x44), e = _mm512_shuffle_f32x4(x[2], x[3], 0xEE);
            float *to = f.s + r * AGK_FLASH_KEYS + QUAD * j;
            v_store(to, _mm512_shuffle_f32x4(a, d, 0x88));
            v_store(to + VF, _mm512_shuffle_f32x4(a, d, 0xDD));
            v_store(to + 2 * VF, _mm512_shuffle_f32x4(b, e, 0x88));
            v_store(to + 3 * VF, _mm512_shuffle_f32x4(b, e, 0xDD));
        }
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
