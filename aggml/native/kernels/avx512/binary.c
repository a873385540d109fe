/* add, sub, mul, div, scale, AVX-512. Bit for bit what lower/binary.c gives. */
#include "math.h"

#include "kernels/vec/binary.h"

void agk_binary_f32_avx512(int op, int64_t n, int64_t rows, const agk_binary_rows *r)
{
    v_binary(op, n, rows, r);
}

void agk_scale_f32_avx512(int64_t n, float *y, const float *x, float scale, float bias)
{
    v_scale(n, y, x, scale, bias);
}
