/* add, sub, mul, div, scale, AVX2. Bit for bit what plain C gives (kernels/scalar/binary.c). */
#include "math.h"

#include "kernels/vec/binary.h"

V_BINARY_KERNELS(avx2)
