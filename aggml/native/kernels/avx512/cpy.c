/* Transposing copies, AVX-512. Bit for bit what lower/copy.c gives. */
#include "math.h"

#include "kernels/vec/cpy.h"

void agk_transpose_32_avx512(int64_t n0, int64_t n1, char *y, int64_t y_step, const char *x, int64_t x_step)
{
    v_transpose_32(n0, n1, y, y_step, x, x_step);
}
