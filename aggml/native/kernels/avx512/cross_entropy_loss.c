/* The cross entropy of a row, AVX-512: sums of lanes over 1024 elements, these in double; against plain C within
 * 1e-6. */
#include "math.h"

#include "kernels/vec/cross_entropy_loss.h"

V_CROSS_ENTROPY_LOSS_KERNELS(avx512)
