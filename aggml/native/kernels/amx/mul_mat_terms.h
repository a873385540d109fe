/* Products of panels and units in tiles (mul_mat_panels.h), for attention. All static inline. */
#ifndef AGK_AMX_TERMS_H
#define AGK_AMX_TERMS_H

#include "kernels/avx512/mul_mat_terms.h"
#include "tiles.h"

#define LOAD_A(t) \
    do { \
        _tile_loadd(4, a + (t) * PAIR, 64); \
        if (two_rows) _tile_loadd(5, a + (t) * PAIR + TILE, 64); \
    } while (0)
#define LOAD_B(t) \
    do { \
        _tile_stream_loadd(6, b + (t) * TILE, 64); \
        if (two_cols) _tile_stream_loadd(7, b + ldb + (t) * TILE, 64); \
    } while (0)
#define MULTIPLY() \
    do { \
        _tile_dpbf16ps(0, 4, 6); \
        if (two_rows) _tile_dpbf16ps(1, 5, 6); \
        if (two_cols) _tile_dpbf16ps(2, 4, 7); \
        if (two_rows && two_cols) _tile_dpbf16ps(3, 5, 7); \
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

/* 32 k: each pair of terms whose ranks add up to less than `terms`, in an order that keeps one side loaded. */
AGK_INLINE void step(int terms, bool two_rows, bool two_cols, const char *a, const char *b, size_t ldb)
{
    if (terms == 1) { /* a product as soon as its tiles are there */
        _tile_loadd(4, a, 64);
        _tile_stream_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (two_rows) {
            _tile_loadd(5, a + TILE, 64);
            _tile_dpbf16ps(1, 5, 6);
        }
        if (two_cols) {
            _tile_stream_loadd(7, b + ldb, 64);
            _tile_dpbf16ps(2, 4, 7);
        }
        if (two_rows && two_cols) _tile_dpbf16ps(3, 5, 7);
        return;
    }
    LOAD_A(0);
    if (terms == 3) {
        LOAD_B(2);
        MULTIPLY(); /* a0 b2 */
    }
    LOAD_B(1);
    MULTIPLY(); /* a0 b1 */
    if (terms == 3) {
        LOAD_A(1);
        MULTIPLY(); /* a1 b1 */
        LOAD_B(0);
        MULTIPLY(); /* a1 b0 */
        LOAD_A(2);
        MULTIPLY(); /* a2 b0 */
        LOAD_A(0);
    } else {
        LOAD_A(1);
        LOAD_B(0);
        MULTIPLY(); /* a1 b0 */
        LOAD_A(0);
    }
    MULTIPLY(); /* a0 b0 */
}

#endif
