/* Transposing copies and fill, NEON. Bit for bit what kernels/scalar/cpy.c gives. */
#include "math.h"

#include "kernels/vec/cpy.h"

V_CPY_KERNELS(neon)

/* A tile of 8 x 8 elements of 16 bits. */
static void square_16(char *y, int64_t y_step, const char *x, int64_t x_step)
{
    uint16x8_t r[8], t[8];
    AGK_UNROLL for (int i = 0; i < 8; ++i) memcpy(&r[i], x + i * x_step, sizeof r[i]);
    AGK_UNROLL for (int i = 0; i < 8; i += 2)
    {
        t[i] = vtrn1q_u16(r[i], r[i + 1]);
        t[i + 1] = vtrn2q_u16(r[i], r[i + 1]);
    }
    AGK_UNROLL for (int i = 0; i < 8; i += i % 4 == 1 ? 3 : 1)
    {
        const uint32x4_t a = vreinterpretq_u32_u16(t[i]), b = vreinterpretq_u32_u16(t[i + 2]);
        r[i] = vreinterpretq_u16_u32(vtrn1q_u32(a, b));
        r[i + 2] = vreinterpretq_u16_u32(vtrn2q_u32(a, b));
    }
    AGK_UNROLL for (int i = 0; i < 4; ++i)
    {
        const uint16x8_t low = vcombine_u16(vget_low_u16(r[i]), vget_low_u16(r[i + 4]));
        const uint16x8_t high = vcombine_u16(vget_high_u16(r[i]), vget_high_u16(r[i + 4]));
        memcpy(y + i * y_step, &low, sizeof low);
        memcpy(y + (i + 4) * y_step, &high, sizeof high);
    }
}

V_CPY_TRANSPOSE_16(neon)
