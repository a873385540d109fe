/* flash_attn_ext: rows of keys and values as floats, and the types that kernels read as they lie. */
#include "flash_plan.h"

bool agk_flash_as_it_lies(int type)
{
    return type == AGK_F32 || type == AGK_F16 || type == AGK_BF16 || type == AGK_Q8_0 || type == AGK_Q4_0;
}

void agk_flash_floats(const agk_view *view, const char *rows, agk_to_float_fn *read, int64_t first, int64_t n,
                      float *to)
{
    if (read == NULL) {
        for (int64_t j = 0; j < n; ++j) {
            const float *row = (const float *)(const void *)(rows + (first + j) * view->nb[1]);
            for (int64_t i = 0; i < view->ne[0]; ++i) to[j * view->ne[0] + i] = row[i];
        }
        return;
    }
    if (view->nb[1] == (int64_t)agk_row_size(view->type, view->ne[0])) {
        read(rows + first * view->nb[1], to, n * view->ne[0]);
        return;
    }
    for (int64_t j = 0; j < n; ++j) read(rows + (first + j) * view->nb[1], to + j * view->ne[0], view->ne[0]);
}
