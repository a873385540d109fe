/* The epilogue of sums in lanes (agk_mm_end), AVX-512 BF16: bias, function, second operand; then the results are stored
 * as columns of c, or as the packed columns of the next product.
 *
 * A vector of sums is one row of 16 columns. Columns of c are transposed in L1, 32 rows of 16 columns at a time. Packed
 * columns need no transposition: the rows of this product are the k of the next one, and its lanes are columns as well.
 * Not here: plain stores (mul_mat_panels.c), stages that no epilogue has (lower/chain.c). */
#include "mul_mat_blocks.h"
#include "mul_mat_end.h"
#include "mul_mat_bytes_unit.h"

enum { ROWS = AGK_PANEL_K, LANES = AGK_MM_UNIT, UNIT_SUMS = AGK_PANEL_SUMS / 2 };

/* -- columns of c --------------------------------------------------------------------------------------------- */

AGK_INLINE void columns(int act, const agk_mm_end *e, const float *sums, int64_t row, int64_t rows, int64_t col,
                        int64_t cols)
{
    _Alignas(64) float x[LANES][ROWS];
    agk_tile_put(sums, &x[0][0], sizeof x[0], 16, LANES, false);
    agk_tile_put(sums + 16 * LANES, &x[0][16], sizeof x[0], 16, LANES, false);
    end_pair pair = end_pair_of(e, rows, row);
    for (int64_t j = 0; j < cols; j += 2) {
        pair.col = col + j;
        pair.two = j + 1 < cols;
        vf t[4] = {v_load(x[j]), v_load(x[j] + 16), v_load(x[j + 1]), v_load(x[j + 1] + 16)};
        end_values(act, e, &pair, row, t);
        end_store(e, &pair, row, t);
    }
}

/* -- packed columns ------------------------------------------------------------------------------------------- */

/* Four rows of act(sums + bias), without the lanes beyond the last column. */
AGK_INLINE void four_rows(int act, const agk_mm_end *e, const float *sums, int64_t row, __mmask16 lanes, vf t[4])
{
    AGK_UNROLL for (int i = 0; i < 4; ++i) t[i] = v_load(sums + LANES * (row + i));
    if (e->bias != NULL) {
        AGK_UNROLL for (int i = 0; i < 4; ++i) t[i] = t[i] + v_set(e->bias[row + i]);
    }
    act_4(act, e->form != AGK_COLUMNS_FLOATS, t);
    AGK_UNROLL for (int i = 0; i < 4; ++i) t[i] = _mm512_maskz_mov_ps(lanes, t[i]);
}

AGK_INLINE void as_floats(int act, const agk_mm_end *e, const float *sums, __mmask16 lanes, char *unit)
{
    AGK_UNROLL for (int row = 0; row < ROWS; row += 4)
    {
        vf t[4];
        four_rows(act, e, sums, row, lanes, t);
        AGK_UNROLL for (int i = 0; i < 4; ++i) _mm512_store_ps(unit + 64 * (row + i), t[i]);
    }
}

/* Two rows side by side: words of the first and the second row in turns. */
AGK_INLINE void as_pairs(int act, const agk_mm_end *e, const float *sums, __mmask16 lanes, char *unit)
{
    const __m512i halves = _mm512_setr_epi32(0x00100000, 0x00110001, 0x00120002, 0x00130003, 0x00140004, 0x00150005,
                                             0x00160006, 0x00170007, 0x00180008, 0x00190009, 0x001a000a, 0x001b000b,
                                             0x001c000c, 0x001d000d, 0x001e000e, 0x001f000f);
    AGK_UNROLL for (int row = 0; row < ROWS; row += 4)
    {
        vf t[4];
        four_rows(act, e, sums, row, lanes, t);
        AGK_UNROLL for (int i = 0; i < 4; i += 2)
        {
            const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(t[i + 1], t[i]);
            _mm512_store_si512(unit + 32 * (row + i), _mm512_permutexvar_epi16(halves, both));
        }
    }
}

AGK_INLINE void as_bytes(int act, const agk_mm_end *e, const float *sums, __mmask16 lanes, agk_bytes_unit *unit)
{
    _Alignas(64) float x[ROWS][LANES];
    vf most = v_zero();
    AGK_UNROLL for (int row = 0; row < ROWS; row += 4)
    {
        vf t[4];
        four_rows(act, e, sums, row, lanes, t);
        AGK_UNROLL for (int i = 0; i < 4; ++i)
        {
            most = agk_unit_most(most, t[i]);
            _mm512_store_ps(x[row + i], t[i]);
        }
    }
    agk_unit_put(e->form == AGK_COLUMNS_BYTES_HALVES, false, x, agk_unit_scales_of(most), unit);
}

/* -- items ---------------------------------------------------------------------------------------------------- */

AGK_INLINE void all(int act, const agk_mm_end *e, const float *sums, size_t panel_sums, int64_t rows, int64_t cols)
{
    for (int64_t col = 0; col < cols; col += LANES) {
        const int64_t n = cols - col < LANES ? cols - col : LANES;
        const float *of_unit = sums + col / LANES * UNIT_SUMS;
        if (e->units != NULL) {
            char *unit = e->units + (size_t)(col / LANES) * e->ld_unit;
            const __mmask16 lanes = n == LANES ? 0xffff : v_first(n);
            if (e->form == AGK_COLUMNS_FLOATS)
                as_floats(act, e, of_unit, lanes, unit);
            else if (e->form == AGK_COLUMNS_PAIRS)
                as_pairs(act, e, of_unit, lanes, unit);
            else
                as_bytes(act, e, of_unit, lanes, (agk_bytes_unit *)(void *)unit);
            continue;
        }
        for (int64_t row = 0; row < rows; row += ROWS) {
            const char *next = (const char *)e->c + (size_t)col * e->ldc + (e->narrow ? 2 : 4) * (row + ROWS);
            for (int64_t j = 0; j < n && row + ROWS < rows; ++j) {
                __builtin_prefetch(next + (size_t)j * e->ldc, 1);
                if (!e->narrow) __builtin_prefetch(next + (size_t)j * e->ldc + 64, 1);
            }
            columns(act, e, of_unit + (size_t)(row / ROWS) * panel_sums, row, rows - row, col, n);
        }
    }
}

void agk_mm_panels_end_avx512(const agk_mm_end *end, const float *sums, size_t panel_sums, int64_t rows, int64_t cols)
{
    switch (end->act) {
    case AGK_OP_gelu_erf: all(AGK_OP_gelu_erf, end, sums, panel_sums, rows, cols); return;
    case AGK_OP_gelu: all(AGK_OP_gelu, end, sums, panel_sums, rows, cols); return;
    case AGK_OP_silu: all(AGK_OP_silu, end, sums, panel_sums, rows, cols); return;
    case AGK_OP_relu: all(AGK_OP_relu, end, sums, panel_sums, rows, cols); return;
    default: all(-1, end, sums, panel_sums, rows, cols); return;
    }
}
