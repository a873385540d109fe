/* Unpacks blocks of q8_0 and q4_0 to codes and scales. (Their floats have kernels of their own, to_f32.c.) Included
 * by files that define V_OUT. */
#ifndef AGK_VEC_DEQUANT_BYTES_H
#define AGK_VEC_DEQUANT_BYTES_H

#include "formats/blocks.h"
#include "dequant.h"

AGK_INLINE void v_q8_0_to_f32(const agk_block_q8_0 *x, v_dst *dst)
{
    for (int h = 0; h < 2; ++h) v_out(dst + 16 * h, v_bytes(x->qs + 16 * h), v_half(x->d));
}

AGK_INLINE void v_q4_0_to_f32(const agk_block_q4_0 *x, v_dst *dst)
{
    for (int h = 0; h < 2; ++h) {
        v_out(dst + 16 * h, _mm_sub_epi8(v_bits(v_bytes(x->qs), 4 * h, 15), _mm_set1_epi8(8)), v_half(x->d));
    }
}

#endif
