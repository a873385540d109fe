/* The cross entropy of a row, AVX2: elements are summed in lanes for runs of 1024, and these sums are added in double.
 * Against plain C: within 1e-6. */
#include "math.h"

#include "kernels/vec/cross_entropy_loss.h"

V_CROSS_ENTROPY_LOSS_KERNELS(avx2)
