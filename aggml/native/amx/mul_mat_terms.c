/* mul_mat in bf16 terms on AMX: panels of 32 rows x units of 16 columns, blocks of 32 x 32 in four tiles.
 *
 * Figures of one core of a Sapphire Rapids. A tile product takes 16 cycles, 3480 GFLOP/s with zeros; numbers, loaded from L1 a
 * tile for each product, leave 2500. A block of 32 x 32 would take 64 bytes a cycle from L2, which gives 46: so a panel of one
 * term stays in L1 and only the units come from L2, loaded as a stream so that the panel stays in: 2510 -> 3230 with zeros, 2000 with
 * numbers. Sums in and out of the tiles cost 290 cycles a block; they stay in the layout of tiles until the last block of k, since
 * turning them each time, behind stores to c that wait for L3, took as long as the products. With more terms a tile is loaded for
 * every second product. Reached only through lines that need AGK_AMX_BF16. */
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

bool agk_mm_terms_cols_amx(int terms, int64_t k, int64_t n, const void *b, size_t ldb, void *out)
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

bool agk_mm_terms_row_amx(int terms, int64_t k, const float *x, void *out)
{
    return terms == 1 ? row(1, k, x, out) : terms == 2 ? row(2, k, x, out) : row(3, k, x, out);
}

void agk_mm_terms_bf16_amx(const void *src, void *out, int64_t k)
{
    const char *x = src;
    char *y = out;
    for (; k >= 32; k -= 32, x += 64, y += PAIR) _mm512_store_si512(y, _mm512_loadu_si512(x));
    if (k > 0) _mm512_store_si512(y, _mm512_maskz_loadu_epi16((1u << k) - 1, x));
}

/* -- products ------------------------------------------------------------------------------------------------- */

/* Lines first .. last - 1 of what lies at `from`, into L2. */
AGK_INLINE void fetch(const char *from, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; ++i) _mm_prefetch(from + 64 * i, _MM_HINT_T1);
}

AGK_INLINE void block(int terms, bool two_rows, bool two_cols, const agk_terms_panel *p, int64_t unit)
{
    float *sums = p->sums + unit / 2 * AGK_TERMS_SUMS;
    const size_t ldb = p->ldb, block_bytes = (size_t)(p->k / 32 * terms) * TILE;
    const char *a = p->a, *b = p->b + (size_t)unit * ldb;
    const int64_t lines = 16 * terms; /* of a unit, for each 32 k */
    const int64_t from = p->shares > 0 ? lines * p->share / p->shares : 0;
    const int64_t to = p->shares > 0 ? lines * (p->share + 1) / p->shares : 0;
    if (p->first)
        EACH(ZERO);
    else
        EACH(RESUME);
    int64_t col = 16 * unit;
    const int64_t end = p->last ? (col + 32 < p->cols ? col + 32 : p->cols) : col,
                  each = end - col > 16 * p->k / 32 ? 32 : 2;
    for (int64_t k = 0; k < p->k; k += 32, a += terms * PAIR, b += terms * TILE) {
        step(terms, two_rows, two_cols, a, b, ldb);
        for (int64_t n = 0; n < each && col < end; ++n, ++col) { /* lines that `put` will store to */
            const char *line = (const char *)p->c + (size_t)col * p->ldc;
            __builtin_prefetch(line, 1, 2);
            if (two_rows) __builtin_prefetch(line + 64, 1, 2);
        }
        fetch(b + block_bytes, from, to);
        if (two_cols) fetch(b + block_bytes + ldb, from, to);
    }
    EACH(KEEP);
}

AGK_INLINE void all_units(int terms, bool two_rows, const agk_terms_panel *p)
{
    const int64_t units = (p->cols + 15) / 16, pairs = (units + 1) / 2;
    int64_t unit = 0, row = 0;
    for (; unit < units; unit += 2) {
        for (; row < p->next_rows * (unit / 2 + 1) / pairs; ++row) {
            fetch(p->next_a + (size_t)row * p->next_lda, 0, (int64_t)(p->next_bytes + 63) / 64);
        }
        if (unit + 1 < units)
            block(terms, two_rows, true, p, unit);
        else
            block(terms, two_rows, false, p, unit);
    }
}

void agk_mm_terms_tile_amx(const agk_terms_panel *p)
{
    agk_tiles_configure(
        (const agk_tile_shape[8]){{16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}});
    if (p->terms == 1 && p->rows > 16)
        all_units(1, true, p);
    else if (p->terms == 1)
        all_units(1, false, p);
    else if (p->terms == 2 && p->rows > 16)
        all_units(2, true, p);
    else if (p->terms == 2)
        all_units(2, false, p);
    else if (p->rows > 16)
        all_units(3, true, p);
    else
        all_units(3, false, p);
    _tile_release();
}

void agk_mm_terms_put_amx(const float *sums, size_t panel_sums, int64_t rows, int64_t cols, float *c, size_t ldc)
{
    for (int64_t col = 0; col < cols; col += 16, c = (float *)(void *)((char *)c + 16 * ldc)) {
        const int64_t n = cols - col < 16 ? cols - col : 16;
        const float *tiles = sums + col / 32 * AGK_TERMS_SUMS + col % 32 * 32;
        for (int64_t row = 0; row < rows; row += 16) {
            const float *tile = tiles + (size_t)(row / 32) * panel_sums + row % 32 * 16;
            agk_tile_put(tile, c + row, ldc, rows - row < 16 ? rows - row : 16, n, false);
        }
    }
}
