/* Rows and columns converted to the form that a kernel reads (convert.h). */
#include "convert.h"

#include "formats/quant.h"
#include "kernels/mul_mat_bytes.h"

void agk_mm_convert(const agk_mm_conversion *conversion, const void *src, void *dst, int64_t k)
{
    switch (conversion->form) {
    case AGK_MM_FLOATS: ((agk_to_float_fn *)conversion->with)(src, dst, k); break;
    case AGK_MM_BF16: ((agk_from_float_fn *)conversion->with)(src, dst, k); break;
    case AGK_MM_Q8:
    case AGK_MM_Q8_ROWS: ((agk_mm_convert_fn *)conversion->with)(src, dst, k); break;
    case AGK_MM_AS_IT_IS: break;
    }
}

agk_mm_conversion agk_mm_to_floats(int type, uint32_t cpu)
{
    if (type == AGK_F32) return (agk_mm_conversion){AGK_MM_AS_IT_IS, NULL};
    return (agk_mm_conversion){AGK_MM_FLOATS, (agk_any_fn *)agk_reader(type, cpu)};
}

agk_mm_conversion agk_mm_to_q8(int type, uint32_t cpu)
{
    agk_mm_convert_fn *with = type == AGK_Q8_0 ? agk_mm_col_from_q8_0 : AGK_PICK(mm_columns_q8, cpu);
    return (agk_mm_conversion){AGK_MM_Q8, (agk_any_fn *)with};
}

agk_mm_conversion agk_mm_columns_of_codes(int a, int b, uint32_t cpu)
{
    /* `wide`: a block of a has 256 elements, so its columns have one scale for each 256. */
    if (b == AGK_Q8_0 || !agk_code_traits_of(a).wide) return agk_mm_to_q8(b, cpu);
    return (agk_mm_conversion){AGK_MM_Q8, (agk_any_fn *)AGK_PICK(mm_columns_q8_wide, cpu)};
}

/* A column has blocks of two halves; a block of q8_0 is one half. `start` is the sum that cancels the offset of 128 by
 * which kernels make the other operand unsigned: -128 times four elements each. */
void agk_mm_col_from_q8_0(const void *src, void *dst, int64_t n)
{
    const agk_block_q8_0 *x = src;
    agk_mm_col_q8 *y = dst;
    for (int64_t i = 0; i < n; i += 2 * AGK_MM_BLOCK, ++y) {
        memset(y, 0, sizeof *y);
        for (int half = 0; half < 2 && i + half * AGK_MM_BLOCK < n; ++half, ++x) {
            y->d[half] = agk_f16_to_float(x->d);
            memcpy(y->q + half * AGK_MM_BLOCK, x->qs, sizeof x->qs);
            for (int e = 0; e < AGK_MM_BLOCK; ++e) y->start[half * 8 + e / 4] -= 128 * x->qs[e];
        }
    }
}
