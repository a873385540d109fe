/* Least-squares searches of the quantizers (quant_search.h).
 *
 * Not here: which type uses which search, and with which weights (quant*.c). */
#include "quant_search.h"

float agk_extreme(int n, const float *x)
{
    float high[8] = {0}, low[8] = {0};
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int k = 0; k < 8; ++k) {
            high[k] = x[i + k] > high[k] ? x[i + k] : high[k];
            low[k] = x[i + k] < low[k] ? x[i + k] : low[k];
        }
    }
    for (; i < n; ++i) {
        high[0] = x[i] > high[0] ? x[i] : high[0];
        low[0] = x[i] < low[0] ? x[i] : low[0];
    }
    for (int k = 1; k < 8; ++k) {
        high[0] = high[k] > high[0] ? high[k] : high[0];
        low[0] = low[k] < low[0] ? low[k] : low[0];
    }
    /* its position is not searched for, since a processor cannot predict where that search ends */
    if (high[0] > -low[0]) return high[0];
    if (high[0] < -low[0]) return low[0];
    if (!(high[0] > 0.0f)) return 0.0f;
    for (i = 0; !(agk_absf(x[i]) >= high[0]); ++i) continue; /* the first of equals */
    return x[i];
}

/* For given levels l the error sum(w * (x - d * l)^2) is least at d = product / square, and d * product less than
 * that of d = 0. */
typedef struct sums {
    float product, square;
} sums;

static inline float weight_of(const float *weight, const float *x, int i)
{
    return weight != NULL ? weight[i] : x[i] * x[i];
}

static sums sums_of_levels(int n, int top, const float *x, const float *weight, float inverse, uint8_t *codes)
{
    sums s = {0.0f, 0.0f};
    for (int i = 0; i < n; ++i) {
        const int level = agk_clamp_int(agk_nearest(inverse * x[i]), -top, top - 1);
        const float w = weight_of(weight, x, i), l = (float)level;
        codes[i] = (uint8_t)(level + top);
        s.product += w * x[i] * l;
        s.square += w * l * l;
    }
    return s;
}

float agk_fit_levels(int n, int top, const float *x, const float *weight, uint8_t *codes)
{
    const float extreme = agk_extreme(n, x);
    if (agk_absf(extreme) < AGK_QUANT_TINY) {
        memset(codes, 0, (size_t)n);
        return 0.0f;
    }
    sums s = sums_of_levels(n, top, x, weight, -(float)top / extreme, codes);
    float d = s.square != 0.0f ? s.product / s.square : 0.0f;
    float gain = d * s.product;
    for (int step = -9; step <= 9; ++step) { /* the extreme gets the level -top, more or less */
        uint8_t trial[32];
        if (step == 0) continue;
        s = sums_of_levels(n, top, x, weight, -((float)top + 0.1f * (float)step) / extreme, trial);
        if (s.square > 0.0f && s.product * s.product > gain * s.square) {
            memcpy(codes, trial, (size_t)n);
            d = s.product / s.square;
            gain = d * s.product;
        }
    }
    return d;
}

float agk_fit_levels_one_by_one(int n, int top, const float *x, uint8_t *codes)
{
    const float extreme = agk_extreme(n, x);
    if (agk_absf(extreme) < AGK_QUANT_TINY) {
        memset(codes, 0, (size_t)n);
        return 0.0f;
    }
    sums s = sums_of_levels(n, top, x, NULL, -(float)top / extreme, codes);
    bool moved = true;
    for (int round = 0; round < 5 && moved; ++round) {
        moved = false;
        for (int i = 0; i < n; ++i) {
            const float w = x[i] * x[i], old = (float)(codes[i] - top);
            sums rest = {s.product - w * x[i] * old, s.square - w * old * old};
            if (!(rest.product > 0.0f)) continue;
            const int level = agk_clamp_int(agk_nearest(x[i] * rest.square / rest.product), -top, top - 1);
            if (level == codes[i] - top) continue;
            rest.product += w * x[i] * (float)level;
            rest.square += w * (float)level * (float)level;
            if (rest.square > 0.0f && rest.product * rest.product * s.square > s.product * s.product * rest.square) {
                codes[i] = (uint8_t)(level + top);
                s = rest;
                moved = true;
            }
        }
    }
    return s.square > 0.0f ? s.product / s.square : 0.0f;
}

static int positive_code(float x, int top)
{
    return agk_clamp_int(agk_nearest(x), 0, top);
}

/* The best of nine scales around that of the largest element. */
static float positive_inverse(int n, int top, const float *x, const float *weight, float largest)
{
    float inverse = (float)top / largest, least = 0.0f;
    for (int i = 0; i < n; ++i) {
        const float difference = x[i] - 1.0f / inverse * (float)agk_nearest(inverse * x[i]);
        least += weight[i] * difference * difference;
    }
    for (int step = -4; step <= 4; ++step) {
        if (step == 0) continue;
        const float trial = (0.1f * (float)step + (float)top) / largest, d = 1.0f / trial;
        float error = 0.0f;
        for (int i = 0; i < n; ++i) {
            const float difference = x[i] - d * (float)positive_code(trial * x[i], top);
            error += weight[i] * difference * difference;
        }
        if (error < least) {
            least = error;
            inverse = trial;
        }
    }
    return inverse;
}

float agk_fit_positive(int n, int top, const float *x, const float *weight, uint8_t *codes)
{
    float largest = 0.0f;
    for (int i = 0; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
    if (largest < AGK_QUANT_TINY) {
        memset(codes, 0, (size_t)n);
        return 0.0f;
    }
    const float inverse = positive_inverse(n, top, x, weight, largest);
    sums s = {0.0f, 0.0f};
    for (int i = 0; i < n; ++i) {
        codes[i] = (uint8_t)positive_code(inverse * x[i], top);
        s.product += weight[i] * x[i] * (float)codes[i];
        s.square += weight[i] * (float)codes[i] * (float)codes[i];
    }
    bool moved = true;
    for (int round = 0; round < 5 && moved; ++round) {
        moved = false;
        for (int i = 0; i < n; ++i) {
            const float w = weight[i], old = (float)codes[i];
            sums rest = {s.product - w * x[i] * old, s.square - w * old * old};
            if (!(rest.product > 0.0f && rest.square > 0.0f)) continue;
            const int code = positive_code(x[i] * rest.square / rest.product, top);
            if (code == codes[i]) continue;
            rest.product += w * x[i] * (float)code;
            rest.square += w * (float)code * (float)code;
            if (rest.product * rest.product * s.square > s.product * s.product * rest.square) {
                codes[i] = (uint8_t)code;
                s = rest;
                moved = true;
            }
        }
    }
    return s.square > 0.0f ? s.product / s.square : 0.0f;
}

/* sum(w * e), e the difference of d * code + minimum from x, or its square. */
static float affine_error(int n, const float *x, const float *weight, float d, float minimum, const uint8_t *codes,
                          bool absolute)
{
    float error = 0.0f;
    for (int i = 0; i < n; ++i) {
        const float difference = d * (float)codes[i] + minimum - x[i];
        error += weight[i] * (absolute ? agk_absf(difference) : difference * difference);
    }
    return error;
}

float agk_fit_affine(int n, int top, const float *x, const float *weight, const agk_affine_search *search,
                     uint8_t *codes, float *minimum)
{
    float least = x[0], most = x[0], sum_w = weight[0], sum_x = sum_w * x[0];
    for (int i = 1; i < n; ++i) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
        sum_w += weight[i];
        sum_x += weight[i] * x[i];
    }
    if (least > 0.0f) least = 0.0f;
    if (!(most > least)) {
        memset(codes, 0, (size_t)n);
        *minimum = -least;
        return 0.0f;
    }
    float inverse = (float)top / (most - least), d = 1.0f / inverse;
    for (int i = 0; i < n; ++i) codes[i] = (uint8_t)agk_clamp_int(agk_nearest(inverse * (x[i] - least)), 0, top);
    float error = affine_error(n, x, weight, d, least, codes, search->absolute);
    for (int step = 0; step <= search->steps; ++step) {
        uint8_t trial[32];
        float sum_l = 0.0f, sum_l2 = 0.0f, sum_xl = 0.0f;
        inverse = (search->first + search->step * (float)step + (float)top) / (most - least); /* the least so far */
        for (int i = 0; i < n; ++i) {
            trial[i] = (uint8_t)agk_clamp_int(agk_nearest(inverse * (x[i] - least)), 0, top);
            const float w = weight[i], l = (float)trial[i];
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
        const float trial_error = affine_error(n, x, weight, trial_d, trial_min, trial, search->absolute);
        if (trial_error < error) {
            memcpy(codes, trial, (size_t)n);
            error = trial_error;
            d = trial_d;
            least = trial_min;
        }
    }
    *minimum = -least;
    return d;
}
