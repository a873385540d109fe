/* soft_max of a row, NEON. Against lower/soft_max.c: within 2e-6 relative for rows of 4096. */
#include "math.h"

#include "kernels/vec/soft_max.h"

void agk_soft_max_f32_neon(int64_t n, float *y, const float *x, const agk_soft_max_row *row)
{
    v_soft_max(n, y, x, row);
}
