/* Transposing copies, fill, f32 to i32 and back, copies of rows, AVX-512. Bit for bit what kernels/scalar/cpy.c
 * gives. */
#include "math.h"

#include "kernels/vec/cpy.h"

V_CPY_KERNELS(avx512)
V_CPY_NUMBERS(avx512)
V_CPY_ROW(avx512)
