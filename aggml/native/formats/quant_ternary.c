/* tq1_0, tq2_0, q2_0: values -d, 0, d; q1_0: values -d, d. None of them uses an importance matrix.
 *
 * Bytes as recorded. Not here: block layouts (blocks.h). */
#include <string.h>

#include "quant.h"
#include "quant_search.h"

enum { SUPER = 256, BLOCK_1 = 128, BLOCK_2 = 64 };

/* For n elements: codes 0, 1, 2 (never 3 for q2_0), which stand for -1, 0, 1 times the largest magnitude. Returns
 * that magnitude. */
static float ternary_codes(int n, const float *x, uint8_t *codes)
{
    const float d = agk_absf(agk_extreme(n, x)), inverse = d != 0.0f ? 1.0f / d : 0.0f;
    for (int i = 0; i < n; ++i) codes[i] = (uint8_t)(agk_clamp_int(agk_round_i8(x[i] * inverse), -1, 1) + 1);
    return d;
}

/* --- tq1_0: digits of base 3, the first the highest ----------------------------------------------------------- */

/* They are scaled from 0..242 to 0..255, so that multiplying by 3 extracts the next digit. */

/* Extracts digit `place` of `digits` bytes: elements a stride apart share a byte. */
static void put_digits(int n_bytes, int n_digits, const uint8_t *codes, uint8_t *out)
{
    for (int i = 0; i < n_bytes; ++i) {
        int value = 0;
        for (int k = 0; k < 5; ++k) value = 3 * value + (k < n_digits ? codes[i + k * n_bytes] : 0);
        out[i] = (uint8_t)((value * 256 + 242) / 243);
    }
}

static void get_digits(int n_bytes, int n_digits, float d, const uint8_t *in, float *out)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    for (int k = 0; k < n_digits; ++k) {
        for (int i = 0; i < n_bytes; ++i, ++out) {
            const uint8_t rest = (uint8_t)(in[i] * power[k]);
            *out = (float)((rest * 3 >> 8) - 1) * d;
        }
    }
}

void agk_f32_to_tq1_0(const float *src, void *dst, int64_t n)
{
    agk_block_tq1_0 *y = dst;
    for (int64_t block = 0; block < n / SUPER; ++block, src += SUPER, ++y) {
        uint8_t codes[SUPER];
        y->d = agk_f16_from_float(ternary_codes(SUPER, src, codes));
        put_digits(32, 5, codes, y->qs);
        put_digits(16, 5, codes + 160, y->qs + 32);
        put_digits(4, 4, codes + 240, y->qh);
    }
}

void agk_tq1_0_to_f32(const void *src, float *dst, int64_t n)
{
    const agk_block_tq1_0 *x = src;
    for (int64_t block = 0; block < n / SUPER; ++block, dst += SUPER, ++x) {
        const float d = agk_f16_to_float(x->d);
        get_digits(32, 5, d, x->qs, dst);
        get_digits(16, 5, d, x->qs + 32, dst + 160);
        get_digits(4, 4, d, x->qh, dst + 240);
    }
}

/* --- tq2_0: 128 elements share 32 bytes ------------------------------------------------------------------------ */

void agk_f32_to_tq2_0(const float *src, void *dst, int64_t n)
{
    agk_block_tq2_0 *y = dst;
    for (int64_t block = 0; block < n / SUPER; ++block, src += SUPER, ++y) {
        uint8_t codes[SUPER];
        y->d = agk_f16_from_float(ternary_codes(SUPER, src, codes));
        for (int i = 0; i < 64; ++i) {
            const uint8_t *c = codes + i / 32 * 128 + i % 32;
            y->qs[i] = (uint8_t)(c[0] | c[32] << 2 | c[64] << 4 | c[96] << 6);
        }
    }
}

void agk_tq2_0_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_tq2_0 *x = src;
    for (int64_t block = 0; block < n / SUPER; ++block, ++x) {
        const float d = agk_f16_to_float(x->d);
        for (int g = 0; g < 8; ++g, dst += 32) {
            const uint8_t *q = x->qs + g / 4 * 32;
            for (int i = 0; i < 32; ++i) dst[i] = (float)((q[i] >> (g % 4 * 2) & 3) - 1) * d;
        }
    }
}

/* --- q2_0: four neighbours share a byte ------------------------------------------------------------------------ */

void agk_f32_to_q2_0(const float *src, void *dst, int64_t n)
{
    agk_block_q2_0 *y = dst;
    for (int64_t block = 0; block < n / BLOCK_2; ++block, src += BLOCK_2, ++y) {
        uint8_t codes[BLOCK_2];
        y->d = agk_f16_from_float(ternary_codes(BLOCK_2, src, codes));
        for (int i = 0; i < BLOCK_2 / 4; ++i) {
            const uint8_t *c = codes + 4 * i;
            y->qs[i] = (uint8_t)(c[0] | c[1] << 2 | c[2] << 4 | c[3] << 6);
        }
    }
}

void agk_q2_0_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_q2_0 *x = src;
    for (int64_t block = 0; block < n / BLOCK_2; ++block, dst += BLOCK_2, ++x) {
        const float d = agk_f16_to_float(x->d);
        for (int i = 0; i < BLOCK_2; ++i) dst[i] = (float)((x->qs[i / 4] >> (i % 4 * 2) & 3) - 1) * d;
    }
}

/* --- q1_0: eight neighbours share a byte, d is the mean magnitude ---------------------------------------------- */

void agk_f32_to_q1_0(const float *src, void *dst, int64_t n)
{
    agk_block_q1_0 *y = dst;
    for (int64_t block = 0; block < n / BLOCK_1; ++block, src += BLOCK_1, ++y) {
        float sum = 0.0f;
        memset(y->qs, 0, sizeof y->qs);
        for (int i = 0; i < BLOCK_1; ++i) {
            sum += agk_absf(src[i]);
            y->qs[i / 8] |= (uint8_t)((src[i] >= 0.0f) << (i % 8));
        }
        y->d = agk_f16_from_float(sum / (float)BLOCK_1);
    }
}

void agk_q1_0_to_f32_scalar(const void *src, float *dst, int64_t n)
{
    const agk_block_q1_0 *x = src;
    for (int64_t block = 0; block < n / BLOCK_1; ++block, dst += BLOCK_1, ++x) {
        const float d = agk_f16_to_float(x->d);
        for (int i = 0; i < BLOCK_1; ++i) dst[i] = x->qs[i / 8] >> (i % 8) & 1 ? d : -d;
    }
}
