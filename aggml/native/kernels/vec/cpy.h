/* Transposition of 32-bit elements, VF x VF at a time; filling a row with one element; f32 to i32 and back, copies of
 * rows (x86).
 * Included after an ISA's math.h. */
#ifndef AGK_VEC_CPY_H
#define AGK_VEC_CPY_H

#include "table/kernel_types.h"

AGK_INLINE void v_transpose_square(char *y, int64_t y_step, const char *x, int64_t x_step)
{
    vf r[VF];
#pragma GCC unroll 16
    for (int i = 0; i < VF; ++i) r[i] = v_load((const float *)(const void *)(x + i * x_step));
    v_transpose(r);
#pragma GCC unroll 16
    for (int j = 0; j < VF; ++j) v_store((float *)(void *)(y + j * y_step), r[j]);
}

typedef void v_transpose_fn(char *y, int64_t y_step, const char *x, int64_t x_step);

/* y[j][i] = x[i][j] for i < n0, j < n1, elements of `size` bytes. `square` moves `edge` x `edge` of them by shuffles,
 * which keep the bits of any type. */
AGK_INLINE void v_transpose_all(v_transpose_fn *square, int64_t edge, int64_t size, int64_t n0, int64_t n1, char *y,
                                int64_t y_step, const char *x, int64_t x_step)
{
    const int64_t whole0 = n0 - n0 % edge, whole1 = n1 - n1 % edge;
    for (int64_t j = 0; j < whole1; j += edge) {
        for (int64_t i = 0; i < whole0; i += edge)
            square(y + j * y_step + size * i, y_step, x + i * x_step + size * j, x_step);
    }
    for (int64_t j = 0; j < n1; ++j) {
        for (int64_t i = j < whole1 ? whole0 : 0; i < n0; ++i)
            memcpy(y + j * y_step + size * i, x + i * x_step + size * j, (size_t)size);
    }
}

static inline void v_fill_32(int64_t n, void *y, uint32_t bits)
{
    float *to = y, one;
    memcpy(&one, &bits, sizeof one);
    const vf x = v_set(one);
    int64_t i = 0;
#pragma GCC unroll 4
    for (; i + VF <= n; i += VF) v_store(to + i, x);
    if (i < n) v_store_n(to + i, x, n - i);
}

/* Bytes as vectors of floats, which keeps their bits; in a longer run the vectors of the target are aligned. The C
 * library copies some KB by `rep movsb`. On a Zen 5 rows of 4 KB have 147 GB/s in this way in L1, and 266 here; rows of
 * 1 KB 102 and 131 in L2, 15 and 25 from memory. Longer runs are left to the library: in L3 and from memory `rep movsb`
 * is up to a fifth faster, since it does not read the lines that it writes. */
AGK_INLINE void v_copy_row(int64_t bytes, char *y, const char *x)
{
    enum { W = 4 * VF, MOST = 4096 };
    if (bytes < W || bytes > MOST) {
        memmove(y, x, (size_t)bytes); /* they may be the same row */
        return;
    }
#define V_AT(p) ((float *)(void *)(p))
#define V_FROM(p) v_load((const float *)(const void *)(p))
    const vf first = V_FROM(x), last = V_FROM(x + bytes - W);
    if (bytes > 4 * W) {
        v_store(V_AT(y), first);
        int64_t i = W - (int64_t)((uintptr_t)y % W);
        for (; i + 4 * W <= bytes; i += 4 * W) {
            const vf r0 = V_FROM(x + i), r1 = V_FROM(x + i + W), r2 = V_FROM(x + i + 2 * W), r3 = V_FROM(x + i + 3 * W);
            v_store(V_AT(y + i), r0);
            v_store(V_AT(y + i + W), r1);
            v_store(V_AT(y + i + 2 * W), r2);
            v_store(V_AT(y + i + 3 * W), r3);
        }
        for (; i + W < bytes; i += W) v_store(V_AT(y + i), V_FROM(x + i));
    } else if (bytes > 2 * W) { /* the vectors overlap in the middle, so all are read first */
        const vf second = V_FROM(x + W), third = V_FROM(x + bytes - 2 * W);
        v_store(V_AT(y), first);
        v_store(V_AT(y + W), second);
        v_store(V_AT(y + bytes - 2 * W), third);
    } else {
        v_store(V_AT(y), first);
    }
    v_store(V_AT(y + bytes - W), last);
#undef V_AT
#undef V_FROM
}

/* The kernels of this file, named for an instruction set. */
#define V_CPY_KERNELS(isa) \
    void agk_cpy_fill_32_##isa(int64_t n, void *y, uint32_t bits) \
    { \
        v_fill_32(n, y, bits); \
    } \
    void agk_cpy_transpose_32_##isa(int64_t n0, int64_t n1, char *y, int64_t y_step, const char *x, int64_t x_step) \
    { \
        v_transpose_all(v_transpose_square, VF, 4, n0, n1, y, y_step, x, x_step); \
    }

/* The same of 16 bits, where the instruction set has a `square_16`. */
#define V_CPY_TRANSPOSE_16(isa) \
    void agk_cpy_transpose_16_##isa(int64_t n0, int64_t n1, char *y, int64_t y_step, const char *x, int64_t x_step) \
    { \
        v_transpose_all(square_16, 8, 2, n0, n1, y, y_step, x, x_step); \
    }

#define V_CPY_ROW(isa) \
    void agk_cpy_row_##isa(int64_t bytes, void *y, const void *x) \
    { \
        v_copy_row(bytes, y, x); \
    }

/* Numbers whose integer cannot be represented become the least integer, as with the instructions of x86. */
#define V_CPY_NUMBERS(isa) \
    void agk_cpy_to_i32_##isa(const float *src, void *dst, int64_t n) \
    { \
        float *y = dst; \
        int64_t i = 0; \
        for (; i + 2 * VF <= n; i += 2 * VF) { \
            v_store(y + i, v_to_i32(v_load(src + i))); \
            v_store(y + i + VF, v_to_i32(v_load(src + i + VF))); \
        } \
        for (; i < n; i += VF) { \
            const int64_t rest = n - i < VF ? n - i : VF; \
            v_store_n(y + i, v_to_i32(v_load_n(src + i, rest)), rest); \
        } \
    } \
    void agk_cpy_from_i32_##isa(const void *src, float *dst, int64_t n) \
    { \
        const float *x = src; \
        int64_t i = 0; \
        for (; i + 2 * VF <= n; i += 2 * VF) { \
            v_store(dst + i, v_from_i32(v_load(x + i))); \
            v_store(dst + i + VF, v_from_i32(v_load(x + i + VF))); \
        } \
        for (; i < n; i += VF) { \
            const int64_t rest = n - i < VF ? n - i : VF; \
            v_store_n(dst + i, v_from_i32(v_load_n(x + i, rest)), rest); \
        } \
    }

#endif
