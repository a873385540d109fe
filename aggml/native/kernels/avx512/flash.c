/* flash_attn_ext, AVX-512: tiles of rows. Against plain C: f32 sums in another order, within 2e-6 of the largest value
 * that a row attends to. Not here: the few rows of decoding (flash_narrow.c). */
#include "math.h"

#include "kernels/vec/flash.h"

V_FLASH_KERNELS(avx512)
