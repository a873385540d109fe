/* mul_mat of quantized rows and many columns in bytes (mul_mat_bytes.h): the template that sdot (dotprod/) and smmla
 * (i8mm/) share, 8 rows x 4 columns.
 *
 * Bytes are signed, so sums begin at 0. A panel is rearranged once for all its columns, so that each load brings 16
 * bytes in the order of the instruction: sdot needs 16 k of a row, whose fours it takes as lanes, smmla 8 k of two
 * rows. That costs 1 / columns of the products. 8 integer sums, 8 of floats, 8 vectors of rows and 2 of columns are
 * 26 registers. Sums have the layout of f32: [unit][32 rows][16 columns]. A file includes this with AGK_SMMLA 0 or
 * 1. Not here: rows as bytes (mul_mat_bytes_rows.c). */
#ifndef AGK_NEON_MUL_MAT_BYTES_H
#define AGK_NEON_MUL_MAT_BYTES_H

#include <arm_neon.h>

#include "kernels/inline.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat_bytes.h"

enum { EIGHT = 8, AT_ONCE = 256, SIXTEENS = AT_ONCE / 16, UNIT_SUMS = AGK_PANEL_SUMS / 2, QUAD = 4 };

/* 16 k of 8 rows. sdot: q [8 rows][16]; d and m of each row, once. smmla: q [2 of 8 k][4 pairs][2 rows][8], and in
 * fours d0 d0 d1 d1 of each pair: the sums of 2 rows x 2 columns in a vector. */
typedef struct sixteen {
    int8_t q[16 * EIGHT];
    float d[16], m[16];
} sixteen;

AGK_INLINE int8x16_t with_sign(const agk_bytes_row *x)
{
    return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(x->q), vdupq_n_u8(128)));
}

AGK_INLINE void lay_rows(bool halves, bool minimum, const agk_mm_panel *p, int64_t first, int64_t k, const char *a,
                         sixteen out[SIXTEENS])
{
    for (int r = 0; r < EIGHT; r += 2) {
        const char *row = a + (size_t)(first + r) * p->lda;
        const agk_bytes_row *x = (const agk_bytes_row *)(const void *)row;
        const agk_bytes_row *y = (const agk_bytes_row *)(const void *)(row + p->lda);
        for (int64_t i = 0; i < k / 16; ++i) {
            const int8x16_t u = with_sign(&x[i]), v = with_sign(&y[i]);
            if (AGK_SMMLA) {
                vst1q_s8(out[i].q + 16 * (r / 2), vcombine_s8(vget_low_s8(u), vget_low_s8(v)));
                vst1q_s8(out[i].q + 16 * (4 + r / 2), vcombine_s8(vget_high_s8(u), vget_high_s8(v)));
            } else {
                vst1q_s8(out[i].q + 16 * r, u);
                vst1q_s8(out[i].q + 16 * (r + 1), v);
            }
            if (!halves && i % 2 == 1) continue;
            if (AGK_SMMLA) {
                vst1q_f32(out[i].d + 2 * r, vcombine_f32(vdup_n_f32(x[i].d), vdup_n_f32(y[i].d)));
                if (minimum)
                    vst1q_f32(out[i].m + 2 * r, vcombine_f32(vdup_n_f32(x[i].minimum), vdup_n_f32(y[i].minimum)));
            } else {
                out[i].d[r] = x[i].d;
                out[i].d[r + 1] = y[i].d;
                out[i].m[r] = x[i].minimum;
                out[i].m[r + 1] = y[i].minimum;
            }
        }
    }
}

/* 8 sums += 16 k of 8 rows times those of 4 columns. sdot: a row each, a column a lane. smmla: [4 pairs of rows][2
 * pairs of columns], in each the products of a pair with a pair. */
AGK_INLINE void products(const sixteen *x, const int8_t *y, int32x4_t s[EIGHT])
{
#if AGK_SMMLA
    AGK_UNROLL for (int e = 0; e < 2; ++e) /* 8 k of 16 columns are 128 bytes */
    {
        const int8x16_t y0 = vld1q_s8(y + 128 * e), y1 = vld1q_s8(y + 128 * e + 16);
        AGK_UNROLL for (int r = 0; r < 4; ++r)
        {
            const int8x16_t pair = vld1q_s8(x->q + 16 * (4 * e + r));
            s[2 * r] = vmmlaq_s32(s[2 * r], pair, y0);
            s[2 * r + 1] = vmmlaq_s32(s[2 * r + 1], pair, y1);
        }
    }
#else
    const int8x16_t y0 = vld1q_s8(y), y1 = vld1q_s8(y + 64), y2 = vld1q_s8(y + 128), y3 = vld1q_s8(y + 192);
    AGK_UNROLL for (int r = 0; r < EIGHT; ++r)
    {
        const int8x16_t row = vld1q_s8(x->q + 16 * r);
        s[r] = vdotq_laneq_s32(s[r], y0, row, 0);
        s[r] = vdotq_laneq_s32(s[r], y1, row, 1);
        s[r] = vdotq_laneq_s32(s[r], y2, row, 2);
        s[r] = vdotq_laneq_s32(s[r], y3, row, 3);
    }
#endif
}

/* Two floats, twice. */
AGK_INLINE float32x4_t two(const float *x)
{
    const float32x2_t pair = vld1_f32(x);
    return vcombine_f32(pair, pair);
}

/* acc += s * scales, plus the minimums times the sums of the columns; h: which half of the row. */
AGK_INLINE void add_scaled(bool minimum, bool wide, int h, const sixteen *x, const agk_bytes_unit *unit, int col,
                           const int32x4_t s[EIGHT], float32x4_t acc[EIGHT])
{
#if AGK_SMMLA
    const float32x4_t d[2] = {two(unit->d + col), two(unit->d + col + 2)};
    const float32x4_t sum[2] = {two(unit->sum[h] + col), two(unit->sum[h] + col + 2)};
    AGK_UNROLL for (int r = 0; r < 4; ++r)
    {
        const float32x4_t scale = vld1q_f32(x->d + 4 * r);
        AGK_UNROLL for (int c = 0; c < 2; ++c)
        {
            const int i = 2 * r + c;
            acc[i] = vfmaq_f32(acc[i], vcvtq_f32_s32(s[i]), wide ? scale : vmulq_f32(scale, d[c]));
            if (minimum) acc[i] = vfmaq_f32(acc[i], vld1q_f32(x->m + 4 * r), sum[c]);
        }
    }
#else
    const float32x4_t d = vld1q_f32(unit->d + col), sum = vld1q_f32(unit->sum[h] + col);
    const float32x4_t scale[2] = {vld1q_f32(x->d), vld1q_f32(x->d + 4)};
    const float32x4_t m[2] = {vld1q_f32(x->m), vld1q_f32(x->m + 4)};
#define AGK_ADD(r) \
    acc[r] = wide ? vfmaq_laneq_f32(acc[r], vcvtq_f32_s32(s[r]), scale[r / 4], r % 4) \
                  : vfmaq_f32(acc[r], vcvtq_f32_s32(s[r]), vmulq_laneq_f32(d, scale[r / 4], r % 4)); \
    if (minimum) acc[r] = vfmaq_laneq_f32(acc[r], sum, m[r / 4], r % 4);
    AGK_ADD(0)
    AGK_ADD(1)
    AGK_ADD(2)
    AGK_ADD(3)
    AGK_ADD(4)
    AGK_ADD(5)
    AGK_ADD(6)
    AGK_ADD(7)
#undef AGK_ADD
#endif
}

/* Multiplies k of 8 rows by 4 columns, those from `col` on of a unit. */
AGK_INLINE void tile(bool halves, bool minimum, bool wide, int64_t k, const sixteen *x, const agk_bytes_unit *unit,
                     int col, bool first, float *sums)
{
    const int at = (AGK_SMMLA ? 8 : 4) * col;
    const float32x4_t d = vld1q_f32(unit->d + col);
    float32x4_t acc[EIGHT];
    AGK_UNROLL for (int i = 0; i < EIGHT; ++i) acc[i] = vdupq_n_f32(0.0f);
    for (int64_t i = 0; i < k; i += AGK_MM_BLOCK, x += 2, ++unit) {
        const int8_t *q = &unit->q[0][0][0] + at;
        int32x4_t s[EIGHT];
        AGK_UNROLL for (int j = 0; j < EIGHT; ++j) s[j] = vdupq_n_s32(0);
        products(&x[0], q, s);
        if (halves) {
            add_scaled(minimum, wide, 0, &x[0], unit, col, s, acc);
            AGK_UNROLL for (int j = 0; j < EIGHT; ++j) s[j] = vdupq_n_s32(0);
        }
        products(&x[1], q + 256, s);
        add_scaled(minimum, wide, halves, &x[halves], unit, col, s, acc);
    }
    if (AGK_SMMLA) { /* smmla has sums of pairs of rows: back to single rows */
        AGK_UNROLL for (int r = 0; r < EIGHT; r += 2)
        {
            const float32x4_t a = acc[r], b = acc[r + 1];
            acc[r] = vcombine_f32(vget_low_f32(a), vget_low_f32(b));
            acc[r + 1] = vcombine_f32(vget_high_f32(a), vget_high_f32(b));
        }
    }
    AGK_UNROLL for (int r = 0; r < EIGHT; ++r)
    {
        const float32x4_t before = first ? vdupq_n_f32(0.0f) : vld1q_f32(sums + 16 * r);
        vst1q_f32(sums + 16 * r, wide ? vfmaq_f32(before, acc[r], d) : vaddq_f32(before, acc[r]));
    }
}

/* Each unit is read from L2 once for the panel. */
AGK_INLINE void panel(bool halves, bool minimum, bool wide, const agk_mm_panel *p)
{
    sixteen x[AGK_PANEL_ROWS / EIGHT][SIXTEENS];
    for (int64_t k0 = 0; k0 < p->k; k0 += AT_ONCE) {
        const int64_t k = p->k - k0 < AT_ONCE ? p->k - k0 : AT_ONCE;
        const bool first = p->first && k0 == 0;
        for (int64_t row = 0; row < p->rows; row += EIGHT) {
            lay_rows(halves, minimum, p, row, k, p->a + (size_t)(k0 / 16) * sizeof(agk_bytes_row), x[row / EIGHT]);
        }
        const char *b = p->b + (size_t)(k0 / AGK_MM_BLOCK) * sizeof(agk_bytes_unit);
        for (int64_t unit = 0; unit * AGK_MM_UNIT < p->cols; ++unit, b += p->ldb) {
            const int64_t left = p->cols - unit * AGK_MM_UNIT;
            for (int64_t row = 0; row < p->rows; row += EIGHT) {
                float *sums = p->sums + unit * UNIT_SUMS + 16 * row;
                for (int col = 0; col < AGK_MM_UNIT && col < left; col += QUAD) {
                    tile(halves, minimum, wide, k, x[row / EIGHT], (const agk_bytes_unit *)(const void *)b, col, first,
                         sums + col);
                }
            }
        }
    }
}

AGK_INLINE void panel_of_kind(const agk_mm_panel *p)
{
    switch ((p->wide ? 4 : 0) + (p->halves ? 2 : 0) + (p->minimum ? 1 : 0)) {
    case 0: panel(false, false, false, p); break;
    case 1: panel(false, true, false, p); break;
    case 2: panel(true, false, false, p); break;
    case 4: panel(false, false, true, p); break;
    case 5: panel(false, true, true, p); break;
    case 6: panel(true, false, true, p); break;
    default: panel(true, true, true, p); /* q2_K; no type has 3 */
    }
}

/* A unit. sdot: q as mul_mat_bytes.h has it, fours of k; smmla: eights, [4][16 columns][8]. */
AGK_INLINE void pack_unit(bool halves, bool wide, int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    enum { UNIT = AGK_MM_UNIT };
    agk_bytes_unit *y = out;
    if (cols < UNIT) memset(out, 0, (size_t)(k / AGK_MM_BLOCK) * sizeof *y);
    for (int64_t i = 0; i < k / AGK_MM_BLOCK; ++i, ++y) {
        int8_t *q = &y->q[0][0][0];
        for (int64_t j = 0; j < cols; ++j) {
            const char *column = (const char *)b + (size_t)j * ldb;
            const agk_mm_col_q8 *x = (const agk_mm_col_q8 *)(const void *)column + i / 2;
            const int8_t *from = x->q + (i & 1) * AGK_MM_BLOCK;
            int32_t sum[2] = {vaddlvq_s8(vld1q_s8(from)), vaddlvq_s8(vld1q_s8(from + 16))};
            if (!halves) sum[0] += sum[1], sum[1] = 0;
            y->d[j] = x->d[i & 1];
            for (int h = 0; h < 2; ++h) {
                y->start[h][j] = -128 * sum[h];
                y->sum[h][j] = (wide ? 1.0f : y->d[j]) * (float)sum[h];
            }
            if (AGK_SMMLA) {
                AGK_UNROLL for (int e = 0; e < AGK_MM_BLOCK; e += 8) memcpy(q + UNIT * e + 8 * j, from + e, 8);
            } else {
                AGK_UNROLL for (int e = 0; e < AGK_MM_BLOCK; e += 4) memcpy(q + UNIT * e + 4 * j, from + e, 4);
            }
        }
    }
}

#endif
