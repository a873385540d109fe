/* flash_attn_ext, AVX-512: tiles of rows, and the few rows of decoding. Against plain C: f32 sums in another order,
 * within 2e-6 of the largest value that a row attends to. */
#include "math.h"

#include "kernels/vec/flash.h"
#include "kernels/vec/flash_narrow.h"

V_FLASH_KERNELS(avx512)
V_FLASH_NARROW_KERNELS(avx512)
