/* f32 to i32, defined for all numbers.
 *
 * Not here: the conversion of the cpy op, which gives what the instruction of x86 gives (cpy.c). */
#include <limits.h>

#include "quant.h"

void agk_f32_to_i32(const float *src, void *dst, int64_t n)
{
    int32_t *y = dst;
    for (int64_t i = 0; i < n; ++i) {
        const float x = src[i];
        const bool fits = x > -2147483648.0f && x < 2147483648.0f;
        const int32_t whole = (int32_t)(fits ? x : 0.0f), end = x > 0.0f ? INT_MAX : INT_MIN;
        y[i] = fits ? whole : x == x ? end : 0;
    }
}
