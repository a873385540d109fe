/* mul_mat of panels and units in lanes, AVX-512: f32, and bf16 terms with vdpbf16ps (mul_mat_terms.h).
 *
 * Lanes are columns, rows of a panel are broadcast: 8 rows x 48 columns, 11 loads for 24 products. Lines of both come in the
 * order in which they are read, so neither strides of a nor its type matter here. A unit of 256 k is 16 KB (f32): three of them
 * stay in L1 for the four times 8 rows of a panel, which itself comes from L1 or L2, 32 bytes for 12 cycles. On one core of a
 * Granite Rapids the loop has 94 % of the peak of FMA on units in L1 and 90 % on units in L2; prefetches into L1 are no faster. Sums stay in the layout of the loop until the last block of k.
 * Not here: tiles (kernels/amx/mul_mat_tiles.c), the steps (lower/mul_mat/mul_mat_terms_items.c). */
#include "kernels/vec/panels.h"
#include "terms.h"

/* -- terms ---------------------------------------------------------------------------------------------------- */

AGK_INLINE __mmask16 load_split(int terms, int64_t left, const float *x, __m512i out[3])
{
    const uint32_t mask = left < 32 ? (1u << left) - 1 : ~0u;
    return split(terms, _mm512_maskz_loadu_ps((__mmask16)mask, x),
                 _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), x + 16), out);
}

AGK_INLINE bool cols(int terms, int64_t k, int64_t n, const char *b, size_t ldb, char *out)
{
    __mmask16 bad = 0;
    for (int64_t i = 0; i < k; i += 32, out += terms * TILE) {
        for (int64_t j = 0; j < 16; ++j) {
            __m512i t[3] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
            if (j < n) {
                const float *x = (const float *)(const void *)(b + (size_t)j * ldb) + i;
                _mm_prefetch((const char *)x + 256, _MM_HINT_T0);
                _mm_prefetch((const char *)x + 320, _MM_HINT_T0);
                bad |= load_split(terms, k - i, x, t);
            }
            AGK_UNROLL for (int u = 0; u < terms; ++u) _mm512_store_si512(out + u * TILE + j * 64, t[u]);
        }
        for (int u = 0; u < terms; ++u) {
            __m512i r[16];
            AGK_UNROLL for (int j = 0; j < 16; ++j) r[j] = _mm512_load_si512(out + u * TILE + j * 64);
            agk_transpose16(r);
            AGK_UNROLL for (int j = 0; j < 16; ++j) _mm512_store_si512(out + u * TILE + j * 64, r[j]);
        }
    }
    return bad == 0;
}

bool agk_mm_terms_cols_avx512(int terms, int64_t k, int64_t n, const void *b, size_t ldb, void *out)
{
    return terms == 1   ? cols(1, k, n, b, ldb, out)
           : terms == 2 ? cols(2, k, n, b, ldb, out)
                        : cols(3, k, n, b, ldb, out);
}

AGK_INLINE bool row(int terms, int64_t k, const float *x, char *out)
{
    __mmask16 bad = 0;
    for (int64_t i = 0; i < k; i += 32, out += terms * PAIR) {
        __m512i t[3];
        bad |= load_split(terms, k - i, x + i, t);
        AGK_UNROLL for (int u = 0; u < terms; ++u) _mm512_store_si512(out + u * PAIR, t[u]);
    }
    return bad == 0;
}

bool agk_mm_terms_row_avx512(int terms, int64_t k, const float *x, void *out)
{
    return terms == 1 ? row(1, k, x, out) : terms == 2 ? row(2, k, x, out) : row(3, k, x, out);
}

void agk_mm_terms_bf16_avx512(const void *src, void *out, int64_t k)
{
    const char *x = src;
    char *y = out;
    for (; k >= 32; k -= 32, x += 64, y += PAIR) _mm512_store_si512(y, _mm512_loadu_si512(x));
    if (k > 0) _mm512_store_si512(y, _mm512_maskz_loadu_epi16((1u << k) - 1, x));
}

/* -- products ------------------------------------------------------------------------------------------------- */

/* R rows of a panel times W units; a step is a line of each row, 16 f32 or pairs of bf16. */
AGK_INLINE void block(bool pairs, int R, int W, int64_t steps, const char *a, const char *b, size_t ldb, float *sums,
                      bool first)
{
    enum { UNIT_SUMS = AGK_TERMS_SUMS / 2 };
    __m512 acc[8][3];
    AGK_UNROLL for (int r = 0; r < R; ++r) AGK_UNROLL for (int w = 0; w < W; ++w)
    {
        acc[r][w] = _mm512_setzero_ps();
        if (!first) _mm_prefetch((const char *)(sums + UNIT_SUMS * w + 16 * r), _MM_HINT_T0);
    }
    for (int64_t i = 0; i < 4 * steps; ++i, a += i % 4 == 0 ? PAIR - 48 : 16, b += 256) {
        AGK_UNROLL for (int j = 0; j < 4; ++j)
        {
            __m512 y[3];
            AGK_UNROLL for (int w = 0; w < W; ++w) y[w] = _mm512_load_ps(b + (size_t)w * ldb + 64 * j);
            AGK_UNROLL for (int r = 0; r < R; ++r)
            {
                __m512 x = _mm512_set1_ps(*(const float *)(const void *)(a + 64 * r + 4 * j));
                if (W > 1) __asm__("" : "+v"(x)); /* one load, not an embedded broadcast per product */
                AGK_UNROLL for (int w = 0; w < W; ++w)
                {
                    acc[r][w] = pairs ? _mm512_dpbf16_ps(acc[r][w], (__m512bh)x, (__m512bh)y[w])
                                      : _mm512_fmadd_ps(x, y[w], acc[r][w]);
                }
            }
        }
    }
    AGK_UNROLL for (int w = 0; w < W; ++w) AGK_UNROLL for (int r = 0; r < R; ++r)
    {
        float *sum = sums + UNIT_SUMS * w + 16 * r;
        _mm512_store_ps(sum, first ? acc[r][w] : _mm512_add_ps(acc[r][w], _mm512_load_ps(sum)));
    }
}

/* All rows of a panel times units unit .. unit + W - 1. */
AGK_INLINE void rows(bool pairs, int W, const agk_terms_panel *p, int64_t steps, const char *a, const char *b,
                     int64_t unit, bool first, agk_ahead *ahead)
{
    float *sums = p->sums + unit * (AGK_TERMS_SUMS / 2);
    const int64_t units = (p->cols + 15) / 16, pieces = (p->rows + 7) / 8;
    for (int64_t i = 0; i < pieces; ++i) {
        agk_fetch_ahead(p, ahead, unit * pieces + W * (i + 1), units * pieces, unit, W, i, pieces);
        block(pairs, 8, W, steps, a + 512 * i, b + (size_t)unit * p->ldb, p->ldb, sums + 128 * i, first);
    }
}

AGK_INLINE void all_units(bool pairs, const agk_terms_panel *p, int64_t steps, const char *a, const char *b, bool first)
{
    const int64_t units = (p->cols + 15) / 16;
    agk_ahead ahead = {0};
    for (int64_t unit = 0; unit < units;) {
        const int64_t left = units - unit;
        if (left == 1) {
            rows(pairs, 1, p, steps, a, b, unit, first, &ahead);
            unit += 1;
        } else if (left == 2 || left == 4) {
            rows(pairs, 2, p, steps, a, b, unit, first, &ahead);
            unit += 2;
        } else {
            rows(pairs, 3, p, steps, a, b, unit, first, &ahead);
            unit += 3;
        }
    }
}

void agk_mm_lanes_tile_avx512(const agk_terms_panel *p)
{
    all_units(false, p, p->k / 16, p->a, p->b, p->first);
}

void agk_mm_terms_tile_avx512(const agk_terms_panel *p)
{
    const int64_t steps = p->k / AGK_TERMS_K, terms = p->terms;
    if (terms == 1) {
        all_units(true, p, steps, p->a, p->b, p->first);
        return;
    }
    bool first = p->first; /* nobody is served by these: f32 lanes are faster */
    for (int64_t i = 0; i < steps * terms * terms; ++i) {
        const int64_t step = i / terms / terms, t = i / terms % terms, u = i % terms;
        if (t + u >= terms) continue;
        all_units(true, p, 1, p->a + (step * terms + t) * PAIR, p->b + (step * terms + u) * TILE, first);
        first = false;
    }
}

void agk_mm_terms_put_avx512(const float *sums, size_t panel_sums, int64_t rows, int64_t cols, float *c, size_t ldc)
{
    for (int64_t col = 0; col < cols; col += 16, c = (float *)(void *)((char *)c + 16 * ldc)) {
        const int64_t n = cols - col < 16 ? cols - col : 16;
        const float *tiles = sums + col / 32 * AGK_TERMS_SUMS + col % 32 * 32;
        for (int64_t row = 0; row < rows; row += 16) {
            const float *tile = tiles + (size_t)(row / 32) * panel_sums + row % 32 * 16;
            /* Lines of c that come next: 3 to 8 % of a product with short k. */
            for (int64_t j = 0; j < n && row + 16 < rows; ++j) {
                __builtin_prefetch((const char *)(c + row + 16) + (size_t)j * ldc, 1);
            }
            agk_tile_put(tile, c + row, ldc, rows - row < 16 ? rows - row : 16, n, false);
        }
    }
}
