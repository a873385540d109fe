/* Sines, cosines and rotations of rope in plain C, phases in double. Not here: frequencies and positions
 * (lower/rope.c). */
#include <math.h>

#include "table/kernel_types.h"

void agk_rope_table_scalar(int64_t n, double position, const double *freq, float magnitude, float *cosine, float *sine)
{
    for (int64_t i = 0; i < n; ++i) {
        cosine[i] = (float)cos(position * freq[i]) * magnitude;
        sine[i] = (float)sin(position * freq[i]) * magnitude;
    }
}

/* Neox: pairs (i, i + half), tables of half entries. Normal: pairs (2i, 2i + 1), tables of 2 half entries, the
 * sines of even places negated. */
void agk_rope_rotate_scalar(bool neox, int64_t half, float *y, const float *x, const float *cosine, const float *sine)
{
    for (int64_t i = 0; i < half; ++i) {
        const int64_t p = neox ? i : 2 * i, q = neox ? i + half : 2 * i + 1;
        const float a = x[p], b = x[q];
        y[p] = neox ? a * cosine[p] - b * sine[p] : a * cosine[p] + b * sine[p];
        y[q] = neox ? a * sine[p] + b * cosine[p] : b * cosine[q] + a * sine[q];
    }
}
