/* Transposition of elements of 16 and 32 bits, filling a row with one element, f32 to i32 and back,
 * copies of rows, in plain C.
 *
 * Not here: their callers (lower/copy.c, lower/cpy.c, lower/shape_fill.c). */
#include "table/kernel_types.h"

/* y[j][i] = x[i][j]: rows of n0 elements at y + j * y_step, columns of x contiguous at x + i * x_step. */
#define TRANSPOSE(bits) \
    void agk_cpy_transpose_##bits##_scalar(int64_t n0, int64_t n1, char *y, int64_t y_step, const char *x, \
                                           int64_t x_step) \
    { \
        for (int64_t j0 = 0; j0 < n1; j0 += 16) { /* 16 rows: each line of x is used up while it is in L1 */ \
            const int64_t end = j0 + 16 < n1 ? j0 + 16 : n1; \
            for (int64_t i = 0; i < n0; ++i) { \
                const uint##bits##_t *from = (const uint##bits##_t *)(const void *)(x + i * x_step); \
                for (int64_t j = j0; j < end; ++j) { \
                    ((uint##bits##_t *)(void *)(y + j * y_step))[i] = from[j]; \
                } \
            } \
        } \
    }
TRANSPOSE(32)
TRANSPOSE(16)

void agk_cpy_fill_32_scalar(int64_t n, void *y, uint32_t bits)
{
    uint32_t *to = y;
    for (int64_t i = 0; i < n; ++i) to[i] = bits;
}

void agk_cpy_row_scalar(int64_t bytes, void *y, const void *x)
{
    if (bytes > 0) memmove(y, x, (size_t)bytes);
}

void agk_cpy_to_i32_scalar(const float *src, void *dst, int64_t n)
{
    agk_i32_from_float(src, dst, n);
}

void agk_cpy_from_i32_scalar(const void *src, float *dst, int64_t n)
{
    const int32_t *x = src;
    for (int64_t i = 0; i < n; ++i) dst[i] = (float)x[i];
}
