/* The epilogue of a product whose sums lie in lanes (agk_mm_end), AVX-512 BF16: adds the bias, applies the activation,
 * combines with the second operand, then stores the results as columns of c, or as packed columns for the next product.
 *
 * A vector of sums has the elements of one row in 16 columns. For columns of c, 32 rows of 16 columns are transposed at
 * a time, in L1. Packed columns need no transposition: the rows of this product are the k of the next one, whose lanes
 * are columns, too. Not here: stores without an epilogue (mul_mat_panels.c), stages that an epilogue cannot carry out
 * (lower/chain.c). */
#include "mul_mat_blocks.h"
#include "mul_mat_end.h"
#include "mul_mat_bytes_unit.h"

enum { ROWS = AGK_PANEL_K, LANES = AGK_MM_UNIT, UNIT_SUMS = AGK_PANEL_SUMS / 2 };

/* -- columns of c --------------------------------------------------------------------------------------------- */

/* 32 rows of 16 columns; of these, `rows` and `cols` are inside c. */
AGK_INLINE void store_columns(int act, const agk_mm_end *e, const float *sums, int64_t row, int64_t rows, int64_t col,
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

/* Four rows of act(sums + bias); lanes beyond the last column become 0. */
AGK_INLINE void four_rows(int act, const agk_mm_end *e, const float *sums, int64_t row, __mmask16 lanes, vf t[4])
{
    AGK_UNROLL for (int i = 0; i < 4; ++i) t[i] = v_load(sums + LANES * (row + i));
    if (e->bias != NULL) {
        AGK_UNROLL for (int i = 0; i < 4; ++i) t[i] = t[i] + v_set(e->bias[row + i]);
    }
    act_4(act, e->form != AGK_COLUMNS_FLOATS, t);
    AGK_UNROLL for (int i = 0; i < 4; ++i) t[i] = _mm512_maskz_mov_ps(lanes, t[i]);
}

AGK_INLINE void pack_floats(int act, const agk_mm_end *e, const float *sums, __mmask16 lanes, char *unit)
{
    for (int row = 0; row < ROWS; row += 4) {
        vf t[4];
        four_rows(act, e, sums, row, lanes, t);
        AGK_UNROLL for (int i = 0; i < 4; ++i) _mm512_store_ps(unit + 64 * (row + i), t[i]);
    }
}

/* Two rows interleaved in bf16: an element of the first row, then that of the second row in the same column. */
AGK_INLINE void pack_pairs(int act, const agk_mm_end *e, const float *sums, __mmask16 lanes, char *unit)
{
    const __m512i halves = _mm512_setr_epi32(0x00100000, 0x00110001, 0x00120002, 0x00130003, 0x00140004, 0x00150005,
                                             0x00160006, 0x00170007, 0x00180008, 0x00190009, 0x001a000a, 0x001b000b,
                                             0x001c000c, 0x001d000d, 0x001e000e, 0x001f000f);
    for (int row = 0; row < ROWS; row += 4) {
        vf t[4];
        four_rows(act, e, sums, row, lanes, t);
        AGK_UNROLL for (int i = 0; i < 4; i += 2)
        {
            const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(t[i + 1], t[i]);
            _mm512_store_si512(unit + 32 * (row + i), _mm512_permutexvar_epi16(halves, both));
        }
    }
}

AGK_INLINE void pack_bytes(int act, const agk_mm_end *e, const float *sums, __mmask16 lanes, agk_bytes_unit *unit)
{
    _Alignas(64) float x[ROWS][LANES];
    vf most = v_zero();
    for (int row = 0; row < ROWS; row += 4) {
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

/* -- all columns of an item of work ------------------------------------------------------------------------------ */

AGK_INLINE void end_columns(int act, const agk_mm_end *e, const float *sums, size_t panel_sums, int64_t rows,
                            int64_t cols)
{
    for (int64_t col = 0; col < cols; col += LANES) {
        const int64_t n = cols - col < LANES ? cols - col : LANES;
        const float *unit_sums = sums + col / LANES * UNIT_SUMS;
        if (e->units != NULL) {
            char *unit = e->units + (size_t)(col / LANES) * e->ld_unit;
            const __mmask16 lanes = n == LANES ? 0xffff : v_first(n);
            if (e->form == AGK_COLUMNS_FLOATS)
                pack_floats(act, e, unit_sums, lanes, unit);
            else if (e->form == AGK_COLUMNS_PAIRS)
                pack_pairs(act, e, unit_sums, lanes, unit);
            else
                pack_bytes(act, e, unit_sums, lanes, (agk_bytes_unit *)(void *)unit);
            continue;
        }
        for (int64_t row = 0; row < rows; row += ROWS) {
            const char *next = (const char *)e->c + (size_t)col * e->ldc + (e->narrow ? 2 : 4) * (row + ROWS);
            for (int64_t j = 0; j < n && row + ROWS < rows; ++j) {
                __builtin_prefetch(next + (size_t)j * e->ldc, 1);
                if (!e->narrow) __builtin_prefetch(next + (size_t)j * e->ldc + 64, 1);
            }
            store_columns(act, e, unit_sums + (size_t)(row / ROWS) * panel_sums, row, rows - row, col, n);
        }
    }
}

void agk_mm_panels_end_avx512(const agk_mm_end *end, const float *sums, size_t panel_sums, int64_t rows, int64_t cols)
{
    switch (end->act) {
    case AGK_OP_gelu_erf: end_columns(AGK_OP_gelu_erf, end, sums, panel_sums, rows, cols); return;
    case AGK_OP_gelu: end_columns(AGK_OP_gelu, end, sums, panel_sums, rows, cols); return;
    case AGK_OP_silu: end_columns(AGK_OP_silu, end, sums, panel_sums, rows, cols); return;
    case AGK_OP_relu: end_columns(AGK_OP_relu, end, sums, panel_sums, rows, cols); return;
    default: end_columns(-1, end, sums, panel_sums, rows, cols); return; /* no activation */
    }
}
