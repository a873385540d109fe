/* flash_attn_ext, NEON: tiles of rows, and the few rows of decoding. Against plain C: f32 sums in another order, within
 * 2e-6 of the largest value that a row attends to. */
#include "math.h"

#include "bytes.h"
#include "kernels/vec/flash.h"
#include "kernels/vec/flash_narrow.h"

V_FLASH_KERNELS(neon)
V_FLASH_NARROW_KERNELS(neon)
