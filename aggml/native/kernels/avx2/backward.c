/* Gradients, AVX2: elements are summed in lanes for runs of 1024, and these sums are added in double; against plain C
 * within 1e-6 of the row's largest element. silu: the bound of kernels/vec/unary.h. */
#include "math.h"

#include "kernels/vec/backward.h"

V_BACKWARD_KERNELS(avx2)
