/* Tiles of AMX: their configuration, and a stored tile to columns of c. All static inline. */
#ifndef AGK_AMX_TILES_H
#define AGK_AMX_TILES_H

#include "../avx512/mul_mat_tile.h"

typedef struct agk_tile_shape {
    uint8_t rows, row_bytes;
} agk_tile_shape;

/* What ldtilecfg reads. */
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
    __asm__ volatile("" ::: "memory"); /* GCC takes the instruction to read 8 bytes only */
    _tile_loadconfig(&c);
}

/* Lane L of the result: columns 4 L .. 4 L + 3 of rows i, i + 4, i + 8, i + 12, so that what remains to be transposed lies
 * within lanes. Half of the shuffles of a whole transposition become loads: 40 cycles instead of 64. */
AGK_INLINE __m512 agk_tile_gather4(const float *x)
{
    __m512 r = _mm512_castps128_ps512(_mm_load_ps(x));
    r = _mm512_mask_broadcast_f32x4(r, 0x00f0, _mm_load_ps(x + 4 * 16));
    r = _mm512_mask_broadcast_f32x4(r, 0x0f00, _mm_load_ps(x + 8 * 16));
    return _mm512_mask_broadcast_f32x4(r, 0xf000, _mm_load_ps(x + 12 * 16));
}

/* `rows` x `cols` of a tile that was stored row by row, to columns of c. */
AGK_INLINE void agk_tile_put(const float *sums, float *c, size_t ldc, int64_t rows, int64_t cols, bool add)
{
    const __mmask16 mask = (__mmask16)((1u << rows) - 1);
    char *to = (char *)c;
    AGK_UNROLL for (int j = 0; j < 16; j += 4)
    {
        const __m512 r[4] = {agk_tile_gather4(sums + j), agk_tile_gather4(sums + 16 + j),
                             agk_tile_gather4(sums + 32 + j), agk_tile_gather4(sums + 48 + j)};
        __m512 t[4];
        agk_transpose4(r, t);
        AGK_UNROLL for (int i = 0; i < 4; ++i, to += ldc)
        {
            if (j + i >= cols) return;
            __m512 value = t[i];
            if (add) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, to));
            _mm512_mask_storeu_ps(to, mask, value);
        }
    }
}

#endif
