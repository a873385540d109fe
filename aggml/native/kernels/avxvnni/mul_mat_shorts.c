/* mul_mat of quantized rows and many columns in byte lanes, AVX-VNNI (mul_mat_shorts.h): 6 rows x 16 columns.
 *
 * All codes are bytes here, because the sums of vpdpbusd have 32 bits. Not here: packing rows and columns, for which
 * the functions of AVX2 are used. */
#define SHORT_VNNI 1
#include "kernels/vec/mul_mat_shorts.h"
#include "table/kernel_types.h"

void agk_mm_shorts_product_avxvnni(const agk_mm_panel *p)
{
    switch ((p->wide ? 4 : 0) + (p->halves ? 2 : 0) + (p->minimum ? 1 : 0)) {
    case 0: all_units(0, false, false, false, p); break;
    case 1: all_units(0, false, true, false, p); break;
    case 2: all_units(0, true, false, false, p); break;
    case 4: all_units(0, false, false, true, p); break;
    case 5: all_units(0, false, true, true, p); break;
    case 6: all_units(0, true, false, true, p); break;
    default: all_units(0, true, true, true, p); /* q2_K; no type has 3 */
    }
}
