/* One column of f32, f16 and bf16, see mul_mat_dots.h. */
#include "lines.h"
#include "mul_mat_dots.h"

AGK_ONE_COLUMN(f32, F32)
AGK_ONE_COLUMN(f16, F16)
AGK_ONE_COLUMN(bf16_bf16, PAIRS)
