/* mul_mat of quantized rows and many columns, smmla: 32 products in an instruction. The code is in
 * kernels/neon/mul_mat_bytes.h. */
#define AGK_SMMLA 1
#include "kernels/neon/mul_mat_bytes.h"

void agk_mm_bytes_columns_i8mm(bool halves, bool wide, int64_t k, int64_t cols, const void *b, size_t ldb, void *out)
{
    pack_unit(halves, wide, k, cols, b, ldb, out);
}

void agk_mm_bytes_product_i8mm(const agk_mm_panel *p)
{
    panel_of_kind(p);
}
