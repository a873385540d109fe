/* Shared by the loops of flash_heads.c: numbers of a row as floats, products of keys and sums of values for up to four
 * rows.
 *
 * Not here: probabilities, the walk over heads and keys (flash_heads.c). */
#ifndef AGK_AVX2_FLASH_HEADS_H
#define AGK_AVX2_FLASH_HEADS_H

#include "math.h"

#include "kernels/vec/flash_narrow.h"

enum {
    LINE = 64,
    ROWS = V_NR, /* rows that are computed together; their S is [keys][ROWS] */
    KEYS = 8,    /* what is computed is a multiple of so many keys */
    PARTS = V_BLOCK / VF,
};

AGK_INLINE int64_t bytes_of(int type, int64_t n) /* of n numbers of a row, whole blocks */
{
    if (type == AGK_Q8_0) return n / V_BLOCK * (int64_t)sizeof(agk_block_q8_0);
    if (type == AGK_Q4_0) return n / V_BLOCK * (int64_t)sizeof(agk_block_q4_0);
    return type == AGK_F32 ? 4 * n : 2 * n;
}

/* Prefetches `bytes`, a constant, into L2. */
AGK_INLINE void ask_for(const char *at, int64_t bytes)
{
#pragma GCC unroll 8
    for (int64_t i = 0; i < bytes; i += LINE) {
        __asm__ volatile("prefetcht1 %0" ::"m"(*(const char (*)[LINE])(at + i)));
    }
}

/* -- numbers */

/* Codes of four bits are widened as the highest four bits of 32, so they are 2^28 times as large. */
AGK_INLINE float unit_of(int type)
{
    return type == AGK_Q4_0 ? 0x1p-28f : 1.0f;
}

/* 8 codes, from number 8 * part of a block of q4_0 on. */
AGK_INLINE vf nibbles(const agk_block_q4_0 *x, int part)
{
    const __m256i top = _mm256_set1_epi8((char)0xF0);
    const __m256i order = part % 2 == 0
                              ? _mm256_setr_epi8(-1, -1, -1, 0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3, -1, -1, -1,
                                                 4, -1, -1, -1, 5, -1, -1, -1, 6, -1, -1, -1, 7)
                              : _mm256_setr_epi8(-1, -1, -1, 8, -1, -1, -1, 9, -1, -1, -1, 10, -1, -1, -1, 11, -1, -1,
                                                 -1, 12, -1, -1, -1, 13, -1, -1, -1, 14, -1, -1, -1, 15);
    /* with the highest bit of a code inverted, it is the code - 8 in two's complement */
    __m256i codes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)x->qs));
    codes = _mm256_xor_si256(codes, _mm256_set1_epi8((char)0x88));
    if (part < 2) codes = _mm256_slli_epi16(codes, 4);
    return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(_mm256_and_si256(codes, top), order));
}

/* 8 numbers of 32, from number 8 * part on; codes without their scale. */
AGK_INLINE vf numbers(int type, const char *at, int part)
{
    if (type == AGK_Q8_0) return v_load_i8(((const agk_block_q8_0 *)(const void *)at)->qs + part * VF);
    if (type == AGK_Q4_0) return nibbles((const agk_block_q4_0 *)(const void *)at, part);
    return v_part(type, at, part * VF, VF);
}

AGK_INLINE vf scale_at(int type, const char *at)
{
    const uint16_t *d = type == AGK_Q8_0 ? &((const agk_block_q8_0 *)(const void *)at)->d
                                         : &((const agk_block_q4_0 *)(const void *)at)->d;
    return _mm256_cvtph_ps(_mm_set1_epi16((short)*d));
}

/* sum += x * y. As the compiler orders operands, sums would wander through registers, and some to memory. */
AGK_INLINE void add_product(vf *sum, vf x, vf y)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(*sum) : "x"(x), "x"(y));
}

/* -- keys */

/* For each of four rows the sum over the lanes, still in two halves. */
AGK_INLINE vf halves(vf a, vf b, vf c, vf d)
{
    const vf e = _mm256_shuffle_ps(a, b, 0x4E) + _mm256_blend_ps(a, b, 0xCC);
    const vf f = _mm256_shuffle_ps(c, d, 0x4E) + _mm256_blend_ps(c, d, 0xCC);
    return _mm256_shuffle_ps(e, f, 0x88) + _mm256_shuffle_ps(e, f, 0xDD);
}

/* Queries of a group of rows in the order in which `dots` reads them: [d / 8][rows][8]. */
static void side_by_side(const agk_flash_tile *t, int64_t row, float *to)
{
    const int64_t rows = t->n_rows - row < ROWS ? t->n_rows - row : ROWS;
    for (int64_t r = 0; r < rows; ++r) {
        const float *from = (const float *)(const void *)(t->q + (row + r) * t->q_step);
        for (int64_t i = 0; i < t->d; i += VF) v_store(to + i * rows + r * VF, v_load(from + i));
    }
}

/* Products of some keys with up to four rows, to S at `to`. */
AGK_INLINE void dots(int type, int rows, int keys, int64_t d, const float *q, const char *k, int64_t step,
                     const char *ask, float *to)
{
    const int64_t size = bytes_of(type, V_BLOCK);
    vf acc[KEYS][ROWS];
#pragma GCC unroll 8
    for (int j = 0; j < keys; ++j) {
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) acc[j][r] = v_zero();
    }
#pragma GCC unroll 1
    for (int64_t i = 0; i < d; i += V_BLOCK, q += rows * V_BLOCK, k += size) {
        vf scale[KEYS];
        if (v_in_blocks(type)) {
#pragma GCC unroll 8
            for (int j = 0; j < keys; ++j) scale[j] = scale_at(type, k + j * step);
        }
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; ++part) {
            const float *its = q + part * rows * VF;
            if (rows > 3) { /* the numbers of all keys are in registers, those of one row */
                vf x[KEYS];
#pragma GCC unroll 8
                for (int j = 0; j < keys; ++j) {
                    x[j] = numbers(type, k + j * step, part);
                    if (v_in_blocks(type)) x[j] = x[j] * scale[j];
                }
#pragma GCC unroll 4
                for (int r = 0; r < rows; ++r) {
                    const vf y = v_load(its + r * VF);
#pragma GCC unroll 8
                    for (int j = 0; j < keys; ++j) add_product(&acc[j][r], x[j], y);
                }
            } else { /* those of one key, and of all rows */
                vf y[ROWS];
#pragma GCC unroll 4
                for (int r = 0; r < rows; ++r) y[r] = v_load(its + r * VF);
#pragma GCC unroll 8
                for (int j = 0; j < keys; ++j) {
                    vf x = numbers(type, k + j * step, part);
                    if (v_in_blocks(type)) x = x * scale[j];
#pragma GCC unroll 4
                    for (int r = 0; r < rows; ++r) add_product(&acc[j][r], x, y[r]);
                }
            }
        }
        ask_for(ask, keys * size);
        ask += keys * size;
    }
    vf sums[KEYS];
#pragma GCC unroll 8
    for (int j = 0; j < keys; ++j) sums[j] = halves(acc[j][0], acc[j][1], acc[j][2], acc[j][3]);
#pragma GCC unroll 4
    for (int j = 0; j + 2 <= keys; j += 2) {
        vf both = _mm256_permute2f128_ps(sums[j], sums[j + 1], 0x21) + _mm256_blend_ps(sums[j], sums[j + 1], 0xF0);
        if (type == AGK_Q4_0) both = both * v_set(unit_of(type));
        v_store(to + j * ROWS, both);
    }
    if (keys % 2 != 0) {
        _mm_storeu_ps(to + (keys - 1) * ROWS,
                      _mm256_castps256_ps128(sums[keys - 1]) + _mm256_extractf128_ps(sums[keys - 1], 1));
    }
}

/* How many keys are computed together with so many rows: 8 to 12 sums are in registers. */
AGK_INLINE int keys_together(int type, int rows)
{
    return rows == 1 ? 8 : rows < 4 ? 4 : v_in_blocks(type) ? 2 : 3;
}

/* Keys as floats: [KEYS][d]. */
AGK_INLINE void widen(int type, int64_t d, const char *k, int64_t step, const char *ask, float *to)
{
    const int64_t size = bytes_of(type, V_BLOCK);
    for (int j = 0; j < KEYS; ++j, k += step) {
        const char *at = k;
        for (int64_t i = 0; i < d; i += V_BLOCK, at += size, to += V_BLOCK) {
            const vf scale = scale_at(type, at) * v_set(unit_of(type));
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; ++part) v_store(to + part * VF, numbers(type, at, part) * scale);
            ask_for(ask, size);
            ask += size;
        }
    }
}

/* -- values */

/* The sums of values of up to four rows += those of n keys, for a part of the width. Of each
 * key `each` bytes are prefetched. */
AGK_INLINE void add_values(int type, int rows, int nv, int within, int64_t dv, int64_t step, int64_t n, const float *p,
                           const char *v, const float *shrink, const char *ask, int64_t each, float *o)
{
    vf acc[ROWS][3];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 3
        for (int h = 0; h < nv; ++h) acc[r][h] = v_load(o + r * dv + h * VF) * v_set(shrink[r]);
    }
#pragma GCC unroll 1
    for (int64_t j = 0; j < n; ++j, v += step, p += ROWS) {
        vf x[3];
#pragma GCC unroll 3
        for (int h = 0; h < nv; ++h) x[h] = numbers(type, v, within + h);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
            const vf y = v_set(p[r]);
#pragma GCC unroll 3
            for (int h = 0; h < nv; ++h) add_product(&acc[r][h], x[h], y);
        }
        ask_for(ask, each);
        ask += each;
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 3
        for (int h = 0; h < nv; ++h) v_store(o + r * dv + h * VF, acc[r][h]);
    }
}

/* Probabilities of up to four rows times the scales of a block: [keys][ROWS]. */
AGK_INLINE void scale_by_block(int type, int64_t n, const float *p, const char *v, int64_t step, float *to)
{
#pragma GCC unroll 2
    for (int64_t j = 0; j < n; j += 2, v += 2 * step) {
        const vf scales = _mm256_blend_ps(scale_at(type, v), scale_at(type, v + step), 0xF0) * v_set(unit_of(type));
        v_store(to + j * ROWS, v_load(p + j * ROWS) * scales);
    }
}

/* The sums of a head's values += those of n keys, all of the width. */
AGK_INLINE void head_values(int type, int rows, int64_t dv, int64_t step, int64_t n, const float *p, const char *v,
                            const float *shrink, const char *ask, float *o)
{
    if (v_in_blocks(type)) {
        float scaled[AGK_FLASH_KEYS * ROWS];
        const int64_t size = bytes_of(type, V_BLOCK);
        for (int64_t i = 0; i < dv; i += V_BLOCK, v += size, o += V_BLOCK) {
            scale_by_block(type, n, p, v, step, scaled);
            add_values(type, rows, 2, 0, dv, step, n, scaled, v, shrink, ask, size, o);
            add_values(type, rows, 2, 2, dv, step, n, scaled, v, shrink, ask, 0, o + 2 * VF);
            ask += n * size;
        }
        return;
    }
    for (int64_t left = dv / VF; left > 0;) { /* three vectors at a time; two if four or two are left */
        if (left > 4 || left == 3) {
            const int64_t each = bytes_of(type, 3 * VF);
            add_values(type, rows, 3, 0, dv, step, n, p, v, shrink, ask, each, o);
            left -= 3;
            v += each;
            o += 3 * VF;
            ask += n * each;
        } else {
            const int64_t each = bytes_of(type, 2 * VF);
            add_values(type, rows, 2, 0, dv, step, n, p, v, shrink, ask, each, o);
            left -= 2;
            v += each;
            o += 2 * VF;
            ask += n * each;
        }
    }
}

#endif
