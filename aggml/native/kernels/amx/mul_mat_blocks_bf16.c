/* mul_mat in bf16 on AMX: 32 rows x 48 columns, six tiles of sums, 512 products per cycle.
 *
 * The packed form for AVX-512 is also what the tiles need: 32 k of 16 columns are 1 KB of pairs, and 32 k of 16 rows
 * lie lda apart. The result is stored transposed, since columns of c are contiguous in rows. The remainder of k is
 * computed with AVX-512. tdpbf16ps treats subnormals as zero, as vdpbf16ps does. Used only through lines that need
 * AGK_AMX_BF16. */
#include "tiles.h"

enum { PER_TILE = 32 }; /* k */

/* Tiles 0..5: sums, 3 for each 16 rows; 6: rows of a; 7: columns of b. */
AGK_INLINE void configure(uint8_t rows)
{
    agk_tiles_configure((const agk_tile_shape[8]){
        {rows, 64}, {rows, 64}, {rows, 64}, {rows, 64}, {rows, 64}, {rows, 64}, {rows, 64}, {16, 64}});
}

#define STORE(tile, row, unit) \
    if (16 * (unit) < cols && (row) < rows) { \
        _tile_stored(tile, sums, 64); \
        agk_tile_put(sums, (float *)(void *)((char *)c + (size_t)(16 * (unit)) * ldc) + (row), ldc, \
                     rows - (row) < 16 ? rows - (row) : 16, cols - 16 * (unit) < 16 ? cols - 16 * (unit) : 16, add); \
    }

/* Multiplies rows 1..32 from `a` on by W units of columns; `two`: there are more than 16 rows. */
AGK_INLINE void tile(int W, bool two, const agk_mm_block *block, const char *a, int64_t rows, float *c)
{
    _Alignas(64) float sums[256];
    const size_t lda = block->lda, ldb = block->ldb, ldc = block->ldc;
    const char *b = block->b;
    const int64_t cols = block->cols;
    const bool add = block->add;
    /* The lines of the result: a tile takes 16 cycles for 32 k, and stores to lines that are not in L1 take longer. */
    for (int64_t j = 0; j < cols; ++j) {
        const char *line = (const char *)c + (size_t)j * ldc;
        __builtin_prefetch(line, 1);
        if (two) __builtin_prefetch(line + 64, 1);
    }
    _tile_zero(0);
    if (W > 1) _tile_zero(1);
    if (W > 2) _tile_zero(2);
    if (two) _tile_zero(3);
    if (two && W > 1) _tile_zero(4);
    if (two && W > 2) _tile_zero(5);
    for (int64_t k = 0; k + PER_TILE <= block->k; k += PER_TILE, a += 64, b += 1024) {
        if (block->a_far) {
            for (int64_t i = 0; i < rows; ++i) _mm_prefetch(a + (size_t)i * lda + 512, _MM_HINT_T0);
        }
        _tile_loadd(6, a, lda);
        _tile_loadd(7, b, 64);
        _tile_dpbf16ps(0, 6, 7);
        if (W > 1) {
            _tile_loadd(7, b + ldb, 64);
            _tile_dpbf16ps(1, 6, 7);
        }
        if (W > 2) {
            _tile_loadd(7, b + 2 * ldb, 64);
            _tile_dpbf16ps(2, 6, 7);
        }
        if (!two) continue;
        _tile_loadd(6, a + 16 * lda, lda); /* tile 7 still holds the last columns */
        if (W > 2) {
            _tile_dpbf16ps(5, 6, 7);
            _tile_loadd(7, b + ldb, 64);
        }
        if (W > 1) {
            _tile_dpbf16ps(4, 6, 7);
            _tile_loadd(7, b, 64);
        }
        _tile_dpbf16ps(3, 6, 7);
    }
    STORE(0, 0, 0)
    if (W > 1) STORE(1, 0, 1)
    if (W > 2) STORE(2, 0, 2)
    if (two) STORE(3, 16, 0)
    if (two && W > 1) STORE(4, 16, 1)
    if (two && W > 2) STORE(5, 16, 2)
}

AGK_INLINE void all_rows(int W, const agk_mm_block *block)
{
    const char *a = block->a;
    float *c = block->c;
    int64_t left = block->rows;
    configure(16);
    for (; left >= 32; left -= 32, a += 32 * block->lda, c += 32) tile(W, true, block, a, 32, c);
    if (left >= 16) {
        tile(W, false, block, a, 16, c);
        left -= 16, a += 16 * block->lda, c += 16;
    }
    if (left > 0) {
        configure((uint8_t)left);
        tile(W, false, block, a, left, c);
    }
    _tile_release();
}

void agk_mm_blocks_bf16_amx(const agk_mm_block *block)
{
    const int64_t whole = block->k / PER_TILE * PER_TILE;
    if (whole > 0) {
        if (block->cols <= 16)
            all_rows(1, block);
        else if (block->cols <= 32)
            all_rows(2, block);
        else
            all_rows(3, block);
    }
    if (whole < block->k || whole == 0) {
        agk_mm_block rest = *block;
        rest.a = (const char *)block->a + 2 * whole;
        rest.b = (const char *)block->b + whole / 2 * 64;
        rest.k = block->k - whole;
        rest.add = block->add || whole > 0;
        agk_mm_blocks_bf16_avx512(&rest);
    }
}
