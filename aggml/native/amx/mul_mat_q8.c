/* mul_mat of q8_0 and q4_0 on AMX: int8 tiles of 16 rows x 16 columns x 32 k, exact, then scaled.
 *
 * A tile is one block of 16 rows: its sums are exact integers, taken out after each block, converted, and added with both
 * scales: 32 cycles of the vector units for 39 of the tiles, which overlap little. Four blocks are under way at once. Rows are those
 * of the AVX-512 kernel (agk_mm_row_q8); columns are packed with their sign, as tdpbssd takes them. Reached only through
 * lines that need AGK_AMX_INT8. */
#include "tiles.h"

enum { AHEAD = 4 };

void agk_mm_pack_s8_amx(int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    agk_mm_unit_q8 *y = out;
    const int64_t blocks = k / AGK_MM_BLOCK;
    for (int64_t i = 0; i < blocks; i += 2, y += 2) {
        _Alignas(64) float d[2][16] = {{0}};
        __m512i r[16];
        AGK_UNROLL for (int j = 0; j < 16; ++j)
        {
            r[j] = _mm512_setzero_si512();
            if (j < cols) {
                const char *column = (const char *)b + (size_t)j * ldb;
                const agk_mm_col_q8 *x = (const agk_mm_col_q8 *)(const void *)column + i / 2;
                r[j] = _mm512_loadu_si512(x->q);
                d[0][j] = x->d[0];
                d[1][j] = x->d[1];
            }
        }
        agk_transpose16(r);
        for (int half = 0; half < 2 && i + half < blocks; ++half) {
            _mm512_storeu_ps(y[half].d, _mm512_load_ps(d[half]));
            for (int v = 0; v < 8; ++v) _mm512_storeu_si512(y[half].q[v], r[8 * half + v]);
        }
    }
}

/* acc[r] += sums[r] * d of row r * d of the columns */
AGK_INLINE void scale(int64_t rows, __m512 acc[16], const int32_t *sums, const char *a, size_t lda,
                      const agk_mm_unit_q8 *unit)
{
    const __m512 columns = _mm512_loadu_ps(unit->d);
    AGK_UNROLL for (int64_t r = 0; r < rows; ++r)
    {
        const agk_mm_row_q8 *row = (const agk_mm_row_q8 *)(const void *)(a + (size_t)r * lda);
        const __m512 both = _mm512_mul_ps(columns, _mm512_set1_ps(row->d));
        acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums + 16 * r)), both, acc[r]);
    }
}

#define BLOCK(n) \
    do { \
        _tile_zero(n); \
        _tile_loadd(6, a + (n) * sizeof(agk_mm_row_q8) + offsetof(agk_mm_row_q8, q), lda); \
        _tile_loadd(7, unit[n].q, 64); \
        _tile_dpbssd(n, 6, 7); \
        _tile_stored(n, sums[n], 64); \
    } while (0)

/* 16 columns of `rows` (1..16) rows, row by row in `out`. */
AGK_INLINE void tile(int64_t rows, int64_t k, const char *a, size_t lda, const agk_mm_unit_q8 *unit, float *out)
{
    _Alignas(64) int32_t sums[AHEAD][256];
    __m512 acc[16];
    int64_t left = k / AGK_MM_BLOCK;
    AGK_UNROLL for (int r = 0; r < 16; ++r) acc[r] = _mm512_setzero_ps();
    for (; left >= AHEAD; left -= AHEAD, a += AHEAD * sizeof(agk_mm_row_q8), unit += AHEAD) {
        BLOCK(0);
        BLOCK(1);
        BLOCK(2);
        BLOCK(3);
        AGK_UNROLL for (int i = 0; i < AHEAD; ++i)
        {
            scale(rows, acc, sums[i], a + (size_t)i * sizeof(agk_mm_row_q8), lda, unit + i);
        }
    }
    for (; left > 0; --left, a += sizeof(agk_mm_row_q8), ++unit) {
        BLOCK(0);
        scale(rows, acc, sums[0], a, lda, unit);
    }
    AGK_UNROLL for (int r = 0; r < 16; ++r) _mm512_store_ps(out + 16 * r, acc[r]);
}

AGK_INLINE void configure(uint8_t rows)
{
    agk_tiles_configure(
        (const agk_tile_shape[8]){{rows, 64}, {rows, 64}, {rows, 64}, {rows, 64}, {0, 0}, {0, 0}, {rows, 32}, {8, 64}});
}

/* Rows first .. last - 1, `rows` at a time. */
AGK_INLINE void panels(int64_t rows, int64_t first, int64_t last, const agk_mm_block *block)
{
    _Alignas(64) float out[256];
    configure((uint8_t)rows);
    for (int64_t col = 0; col < block->cols; col += 16) {
        const int64_t cols = block->cols - col < 16 ? block->cols - col : 16;
        const char *units = (const char *)block->b + (size_t)(col / 16) * block->ldb;
        float *c = (float *)(void *)((char *)block->c + (size_t)col * block->ldc);
        for (int64_t row = first; row < last; row += rows) {
            for (int64_t j = 0; j < cols; ++j) __builtin_prefetch((char *)(c + row) + (size_t)j * block->ldc, 1);
            tile(rows, block->k, (const char *)block->a + (size_t)row * block->lda, block->lda,
                 (const agk_mm_unit_q8 *)(const void *)units, out);
            agk_tile_put(out, c + row, block->ldc, rows, cols, block->add);
        }
    }
}

void agk_mm_tile_s8_amx(const agk_mm_block *block)
{
    const int64_t whole = block->rows / 16 * 16;
    if (whole > 0) panels(16, 0, whole, block);
    if (whole < block->rows) panels(block->rows - whole, whole, block->rows, block);
    _tile_release();
}
