/* Steps of optimizers, AVX2. Bit for bit what kernels/scalar/optimizers.c gives. */
#include "math.h"

#include "kernels/vec/optimizers.h"

V_OPTIMIZERS_KERNELS(avx2)
