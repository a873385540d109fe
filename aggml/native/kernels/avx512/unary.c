/* Unary functions of f32, f16 and bf16, AVX-512. Against plain C: within 4 ulp of f32; gelu, gelu_quick and gelu_erf,
 * whose exponent is rounded, within 1e-6 of max(1, |x|). */
#include "math.h"

#include "halves.h"
#include "kernels/vec/unary.h"
#include "kernels/vec/unary_halves.h"

V_UNARY_KERNELS(avx512)
V_UNARY_HALVES_KERNELS(avx512)
