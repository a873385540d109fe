/* The slope by which ALiBi scales the mask of each head (Press et al., 2021), as ggml has it. */
#ifndef AGK_ALIBI_H
#define AGK_ALIBI_H

#include <math.h>
#include <stdint.h>

/* The heads up to the largest power of two p take powers of 2^(-max_bias/p); further heads take the odd powers of
 * its square root. */
static inline float agk_alibi_slope(int64_t head, int64_t n_heads, float max_bias)
{
    int64_t p = 1;
    while (2 * p <= n_heads) p *= 2;
    if (head < p) return powf(powf(2.0f, -max_bias / (float)p), (float)(head + 1));
    return powf(powf(2.0f, -max_bias / 2.0f / (float)p), (float)(2 * (head - p) + 1));
}

#endif
