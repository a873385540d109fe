/* Peaks of tiles: 16 rows of 64 bytes; four sums, since a product takes 52 cycles and one begins every 16.
 *
 * The numbers are random: with such numbers the unit takes so much power that the clock falls, on a Granite Rapids
 * from 3.2 to 2.5 GHz. */
#include <immintrin.h>

#include "kernels/amx/tiles.h"
#include "kernels/peak.h"

/* Sums are 0 in tiles 0 to 3, operands in 4 to 7: bytes of any value, or bf16 numbers from 1 to 2 of either sign. */
static void begin(int bf16)
{
    const agk_tile_shape whole = {16, 64};
    const agk_tile_shape shapes[8] = {whole, whole, whole, whole, whole, whole, whole, whole};
    uint16_t numbers[4][512];
    uint32_t state = 1;
    for (int t = 0; t < 4; ++t) {
        for (int i = 0; i < 512; ++i) {
            state = state * 1664525u + 1013904223u;
            const uint16_t drawn = (uint16_t)(state >> 16);
            numbers[t][i] = bf16 ? (uint16_t)((drawn & 0x807fu) | 0x3f80u) : drawn;
        }
    }
    agk_tiles_configure(shapes);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, numbers[0], 64);
    _tile_loadd(5, numbers[1], 64);
    _tile_loadd(6, numbers[2], 64);
    _tile_loadd(7, numbers[3], 64);
}

#define PEAK_TILES(symbol, name, products) \
    double symbol(int64_t turns) \
    { \
        begin((products) == 32); \
        for (int64_t turn = 0; turn < turns; ++turn) { \
            __asm__ volatile(name " %tmm4, %tmm6, %tmm0\n\t" name " %tmm4, %tmm7, %tmm1\n\t" name \
                                  " %tmm5, %tmm6, %tmm2\n\t" name " %tmm5, %tmm7, %tmm3"); \
        } \
        _tile_release(); \
        return 2.0 * 16 * 16 * (products) * 4; \
    }

PEAK_TILES(agk_peak_bf16_amx, "tdpbf16ps", 32)
PEAK_TILES(agk_peak_int8_amx, "tdpbssd", 64)
