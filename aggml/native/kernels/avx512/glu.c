/* Gated units, AVX-512. Against plain C: the bound of f (unary.c), times |g|, and one rounding. */
#include "math.h"

#include "kernels/vec/glu.h"

V_GLU_KERNELS(avx512)
