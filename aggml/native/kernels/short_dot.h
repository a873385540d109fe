/* The dot product of rows of some ten to some hundred elements, in plain C that the compiler vectorises. */
#ifndef AGK_SHORT_DOT_H
#define AGK_SHORT_DOT_H

#include <stdint.h>

/* Eight independent sums, so that the compiler may vectorise without permission to reorder. */
static inline float agk_short_dot(int64_t n, const float *x, const float *y)
{
    float sum[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int k = 0; k < 8; ++k) sum[k] += x[i + k] * y[i + k];
    }
    float rest = 0.0f;
    for (; i < n; ++i) rest += x[i] * y[i];
    return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7])) + rest;
}

#endif
