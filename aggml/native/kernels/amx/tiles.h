/* Tiles of AMX: their configuration, and storing a tile to columns of c. Everything here is static inline. */
#ifndef AGK_AMX_TILES_H
#define AGK_AMX_TILES_H

#include "kernels/avx512/mul_mat_blocks.h"

typedef struct agk_tile_shape {
    uint8_t rows, row_bytes;
} agk_tile_shape;

/* The memory layout that ldtilecfg reads. */
AGK_INLINE void agk_tiles_configure(const agk_tile_shape shapes[8])
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c = {.palette = 1};
    AGK_UNROLL for (int i = 0; i < 8; ++i)
    {
        c.row_bytes[i] = shapes[i].row_bytes;
        c.rows[i] = shapes[i].rows;
    }
    __asm__ volatile("" ::: "memory"); /* GCC believes that the instruction reads 8 bytes only */
    _tile_loadconfig(&c);
}

#endif
