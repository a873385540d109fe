/* Gradients, AVX-512: sums of lanes over 1024 elements, these in double; against plain C within 1e-6 of the row's
 * largest element. silu: the bound of kernels/vec/unary.h. */
#include "math.h"

#include "kernels/vec/backward.h"

V_BACKWARD_KERNELS(avx512)
