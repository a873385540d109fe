/* Unary functions, AVX-512. Against plain C: within 4 ulp; gelu, gelu_quick and gelu_erf, whose exponent is rounded,
 * within 1e-6 of max(1, |x|). */
#include "math.h"

#include "kernels/vec/unary.h"

V_UNARY_KERNELS(avx512)
