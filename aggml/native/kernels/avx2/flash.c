/* flash_attn_ext, AVX2: tiles of rows, and the few rows of decoding. Against plain C: f32 sums in another order, within
 * 2e-6 of the largest value that a row attends to. */
#include "math.h"

/* As the compiler orders operands, sums would wander through registers, and some to memory. */
#define V_ADD_PRODUCT(sum, x, y) __asm__("vfmadd231ps %2, %1, %0" : "+x"(*(sum)) : "x"(x), "x"(y))
#include "kernels/vec/flash.h"
#include "kernels/vec/flash_narrow.h"

V_FLASH_KERNELS(avx2)
V_FLASH_NARROW_KERNELS(avx2)
