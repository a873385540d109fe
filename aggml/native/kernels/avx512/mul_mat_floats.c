/* floats, AVX-512: panels and units of f32, multiplied by FMA. The loop is in mul_mat_panels.h. */
#include "mul_mat_panels.h"

void agk_mm_floats_product_avx512(const agk_mm_panel *p)
{
    all_units(false, p, p->k / 16, p->a, p->b, p->first);
}
