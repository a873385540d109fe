/* Products of bf16 terms in matrix tiles: up to 32 rows x 32 columns, 32 k at a time, for products and for attention.
 *
 * The includer defines AGK_DP(sum, rows, cols), the product of two tiles; TERM_OF_ROWS, the bytes from one term of
 * its rows to the next; and `requests` with fetch(requests *, i, n), which issues part i of n of the prefetches that
 * belong to 32 k. Everything here is static inline. */
#ifndef AGK_AMX_MUL_MAT_TERMS_H
#define AGK_AMX_MUL_MAT_TERMS_H

#include "tiles.h"

/* Tiles 0 .. 3: sums of (low rows, first columns), (high, first), (low, second), (high, second); 4, 5: rows; 6, 7:
 * columns. */
#define LOAD_A(t) \
    do { \
        _tile_loadd(4, a + (t) * TERM_OF_ROWS, 64); \
        if (two_rows) _tile_loadd(5, a + lda + (t) * TERM_OF_ROWS, 64); \
    } while (0)
#define LOAD_B(t) \
    do { \
        _tile_stream_loadd(6, b + (t) * AGK_TERMS_TILE, 64); \
        if (two_cols) _tile_stream_loadd(7, b + ldb + (t) * AGK_TERMS_TILE, 64); \
    } while (0)
#define MULTIPLY() \
    do { \
        AGK_DP(0, 4, 6); \
        if (two_rows) AGK_DP(1, 5, 6); \
        if (two_cols) AGK_DP(2, 4, 7); \
        if (two_rows && two_cols) AGK_DP(3, 5, 7); \
    } while (0)
#define EACH(action) \
    do { \
        action(0); \
        if (two_rows) action(1); \
        if (two_cols) action(2); \
        if (two_rows && two_cols) action(3); \
    } while (0)
#define ZERO(i) _tile_zero(i)
#define RESUME(i) _tile_loadd(i, sums + 256 * (i), 64)
#define KEEP(i) _tile_stored(i, sums + 256 * (i), 64)

/* The products that follow the first four of 32 k: the other pairs of terms, in an order in which one operand stays
 * loaded. */
AGK_INLINE void others(int terms, bool two_rows, bool two_cols, const char *a, size_t lda, const char *b, size_t ldb,
                       requests *ahead)
{
    if (terms == 3) {
        fetch(ahead, 0, 6);
        LOAD_B(1);
        MULTIPLY(); /* a0 b1 */
        fetch(ahead, 1, 6);
        LOAD_A(1);
        MULTIPLY(); /* a1 b1 */
        fetch(ahead, 2, 6);
        LOAD_B(0);
        MULTIPLY(); /* a1 b0 */
        fetch(ahead, 3, 6);
        LOAD_A(2);
        MULTIPLY(); /* a2 b0 */
        fetch(ahead, 4, 6);
    } else {
        fetch(ahead, 0, 3);
        LOAD_A(1);
        LOAD_B(0);
        MULTIPLY(); /* a1 b0 */
        fetch(ahead, 1, 3);
    }
    LOAD_A(0);
    MULTIPLY(); /* a0 b0 */
    fetch(ahead, terms == 3 ? 5 : 2, terms == 3 ? 6 : 3);
}

/* 32 k: each pair of terms whose ranks add up to less than `terms`. */
AGK_INLINE void step(int terms, bool two_rows, bool two_cols, const char *a, size_t lda, const char *b, size_t ldb,
                     requests *ahead)
{
    if (terms == 1) { /* multiplies as soon as the tiles of an operand are loaded */
        _tile_loadd(4, a, 64);
        _tile_stream_loadd(6, b, 64);
        AGK_DP(0, 4, 6);
        if (two_rows) {
            _tile_loadd(5, a + lda, 64);
            AGK_DP(1, 5, 6);
        }
        if (two_cols) {
            _tile_stream_loadd(7, b + ldb, 64);
            AGK_DP(2, 4, 7);
        }
        if (two_rows && two_cols) AGK_DP(3, 5, 7);
        fetch(ahead, 0, 1);
        return;
    }
    LOAD_A(0);
    LOAD_B(terms - 1);
    MULTIPLY();
    others(terms, two_rows, two_cols, a, lda, b, ldb, ahead);
}

#endif
