// The searches for scales and codes that several types share, step by step as in native/formats/quant_search.c.
//
// Sums go from the first element to the last. Not here: searches of one type alone (quantize_*.cuh).
#pragma once
#include "common.cuh"

DEV int clampi(int x, int least, int most)
{
    return x < least ? least : x > most ? most : x;
}

// Rounds to the nearest integer, halves to even; see agk_nearest.
DEV int nearest(float x)
{
    return (int)(__float_as_uint(x + 12582912.0f) & 0x7fffffu) - 0x400000;
}

DEV int code_below(float x, int top)
{
    if (!(x > 0.0f)) return 0;
    return x < (float)top ? (int)x : top;
}

DEV int round_i8(float x)
{
    if (!(x > -128.5f && x < 127.5f)) return 0;
    const int whole = (int)x;
    const float rest = x - (float)whole;
    return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

DEV float extreme(int n, const float *x)
{
    float best = 0.0f;
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        if (fabsf(x[i]) > fabsf(best)) best = x[i];
    }
    return best;
}

DEV void put_half(char *p, float x)
{
    *(u16 *)p = float_to_half(x);
}

DEV float inverse_of(float d)
{
    return d != 0.0f ? 1.0f / d : 0.0f;
}

DEV float squares(const float *x, int n)
{
    float sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < n; ++i) sum += x[i] * x[i];
    return sum;
}

// The result of fit_affine. `inverse` and `from` give the codes of the search again: see searched_code.
struct AffineFit {
    float scale, minimum, inverse, from;
};

// agk_fit_affine with the weights |x| (q2_K), or root mean square + |x| (q4_K, q5_K).
DEV AffineFit fit_affine(int n, int top, const float *x, float first, float step_size, int steps, bool absolute)
{
    const float base = absolute ? 0.0f : sqrtf(squares(x, n) / (float)n);
    float least = x[0], most = x[0], sum_w = base + fabsf(x[0]), sum_x = sum_w * x[0];
#pragma unroll 1
    for (int i = 1; i < n; ++i) {
        const float w = base + fabsf(x[i]);
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
        sum_w += w;
        sum_x += w * x[i];
    }
    if (least > 0.0f) least = 0.0f;
    if (!(most > least)) return {0.0f, -least, 0.0f, 0.0f};
    float inverse = (float)top / (most - least), d = 1.0f / inverse, error = 0.0f;
    float best_inverse = inverse, from = least;
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        const float difference = d * (float)clampi(nearest(inverse * (x[i] - least)), 0, top) + least - x[i];
        error += (base + fabsf(x[i])) * (absolute ? fabsf(difference) : difference * difference);
    }
#pragma unroll 1
    for (int step = 0; step <= steps; ++step) {
        float sum_l = 0.0f, sum_l2 = 0.0f, sum_xl = 0.0f;
        inverse = (first + step_size * (float)step + (float)top) / (most - least);
#pragma unroll 1
        for (int i = 0; i < n; ++i) {
            const float l = (float)clampi(nearest(inverse * (x[i] - least)), 0, top), w = base + fabsf(x[i]);
            sum_l += w * l;
            sum_l2 += w * l * l;
            sum_xl += w * l * x[i];
        }
        const float determinant = sum_w * sum_l2 - sum_l * sum_l;
        if (!(determinant > 0.0f)) continue;
        float trial_d = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        float trial_min = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
        if (trial_min > 0.0f) {
            trial_min = 0.0f;
            trial_d = sum_xl / sum_l2;
        }
        float trial_error = 0.0f;
#pragma unroll 1
        for (int i = 0; i < n; ++i) {
            const float l = (float)clampi(nearest(inverse * (x[i] - least)), 0, top);
            const float difference = trial_d * l + trial_min - x[i];
            trial_error += (base + fabsf(x[i])) * (absolute ? fabsf(difference) : difference * difference);
        }
        if (trial_error < error) {
            error = trial_error;
            best_inverse = inverse;
            from = least;
            d = trial_d;
            least = trial_min;
        }
    }
    return {d, -least, best_inverse, from};
}

// The code that the search has given to an element of the group.
DEV int searched_code(float x, const AffineFit &fit, int top)
{
    return clampi(nearest(fit.inverse * (x - fit.from)), 0, top);
}

// A code for the scale and minimum as they are stored. If the stored scale is 0, as that of a group whose numbers are
// much smaller than those of its block, the code of the search stays.
DEV int affine_code(float x, float d, float minimum, const AffineFit &fit, int top)
{
    return d == 0.0f ? searched_code(x, fit, top) : clampi(nearest((x + minimum) / d), 0, top);
}

// agk_fit_levels with the weights x^2. Returns the scale; *best gives the codes of the search again: see level_code.
DEV float fit_levels(int n, int top, const float *x, float *best)
{
    const float most = extreme(n, x);
    *best = 0.0f;
    if (fabsf(most) < 1e-15f) return 0.0f;
    float d = 0.0f, gain = 0.0f;
#pragma unroll 1
    for (int k = 0; k < 19; ++k) { // step 0 first, then -9 .. 9 without 0
        const int step = k == 0 ? 0 : k < 10 ? k - 10 : k - 9;
        const float inverse = step == 0 ? -(float)top / most : -((float)top + 0.1f * (float)step) / most;
        float product = 0.0f, square = 0.0f;
#pragma unroll 1
        for (int i = 0; i < n; ++i) {
            const float w = x[i] * x[i], l = (float)clampi(nearest(inverse * x[i]), -top, top - 1);
            product += w * x[i] * l;
            square += w * l * l;
        }
        if (k == 0) {
            d = square != 0.0f ? product / square : 0.0f;
            gain = d * product;
            *best = inverse;
        } else if (square > 0.0f && product * product > gain * square) {
            d = product / square;
            gain = d * product;
            *best = inverse;
        }
    }
    return d;
}

// A code for the scale as it is stored. If that is 0, the code of the search stays: `best` is the inverse of the scale
// that the search has multiplied by, 0 if all elements of the group are 0.
DEV int level_code(float x, float d, float best, int top)
{
    if (d == 0.0f && best == 0.0f) return 0;
    return clampi(nearest(d == 0.0f ? best * x : x / d), -top, top - 1) + top;
}
