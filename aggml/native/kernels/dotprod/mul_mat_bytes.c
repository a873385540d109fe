/* mul_mat of quantized rows and many columns, sdot: 16 products in an instruction. The code is in
 * kernels/neon/mul_mat_bytes.h. */
#define AGK_SMMLA 0
#include "kernels/neon/mul_mat_bytes.h"

void agk_mm_bytes_columns_dotprod(bool halves, bool wide, int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    pack_unit(halves, wide, k, cols, b, ldb, out);
}

void agk_mm_bytes_product_dotprod(const agk_mm_panel *p)
{
    panel_of_kind(p);
}
