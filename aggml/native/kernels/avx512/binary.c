/* add, sub, mul, div of f32, f16 and bf16, and scale, AVX-512. Bit for bit what plain C gives
 * (kernels/scalar/binary.c). */
#include "math.h"

#include "halves.h"
#include "kernels/vec/binary.h"
#include "kernels/vec/binary_halves.h"

V_BINARY_KERNELS(avx512)
V_BINARY_HALVES_KERNELS(avx512)
