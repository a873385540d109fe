/* The exact kernel of flash_attn_ext: row by row, key by key.
 *
 * Not here: the walk over tiles (flash_walk.c), the vector kernels (kernels/vec/flash.h,
 * kernels/vec/flash_narrow.h). */
#include <math.h>

#include "kernels/flash.h"
#include "table/kernel_types.h"
#include "formats/quant.h"

static const uint16_t minus_infinity = 0xfc00;

void agk_flash_begin_scalar(const agk_flash_tile *t)
{
    float *o = t->state, *max = o + AGK_FLASH_TILE * t->dv, *sum = max + AGK_FLASH_TILE;
    for (int64_t i = 0; i < AGK_FLASH_TILE * t->dv; ++i) o[i] = 0.0f;
    for (int64_t i = 0; i < AGK_FLASH_TILE; ++i) {
        max[i] = -INFINITY;
        sum[i] = 0.0f;
    }
}

void agk_flash_block_scalar(const agk_flash_tile *t, int64_t first, int64_t n, const void *k_rows, const void *v_rows)
{
    const float *k = k_rows, *v = v_rows;
    float *o = t->state, *max = o + AGK_FLASH_TILE * t->dv, *sum = max + AGK_FLASH_TILE;
    for (int64_t i = 0; i < t->n_rows; ++i) {
        const float *q = (const float *)(const void *)(t->q + i * t->q_step);
        float *row = o + i * t->dv;
        for (int64_t j = 0; j < n; ++j) {
            double dot = 0.0;
            for (int64_t e = 0; e < t->d; ++e) dot += (double)q[e] * (double)k[j * t->d + e];
            float s = (float)dot * t->scale;
            if (t->softcap > 0.0f) s = t->softcap * tanhf(s / t->softcap);
            if (t->mask_form != AGK_FLASH_NO_MASK) {
                const uint16_t *mask = (const uint16_t *)(const void *)(t->mask + i * t->mask_step);
                if (mask[first + j] == minus_infinity) continue;
                s += t->slope[i] * agk_f16_to_float(mask[first + j]);
            }
            if (s > max[i]) {
                const float shrink = expf(max[i] - s);
                for (int64_t e = 0; e < t->dv; ++e) row[e] *= shrink;
                sum[i] *= shrink;
                max[i] = s;
            }
            const float p = expf(s - max[i]);
            sum[i] += p;
            for (int64_t e = 0; e < t->dv; ++e) row[e] += p * v[j * t->dv + e];
        }
    }
}

void agk_flash_end_scalar(const agk_flash_tile *t)
{
    const float *o = t->state, *max = o + AGK_FLASH_TILE * t->dv, *sum = max + AGK_FLASH_TILE;
    for (int64_t i = 0; i < t->n_rows; ++i) {
        float *out = (float *)(void *)(t->out + i * t->out_step);
        const float top = t->sink[i] > max[i] ? t->sink[i] : max[i], shrink = expf(max[i] - top);
        const float total = sum[i] * shrink + (t->sink[i] > -INFINITY ? expf(t->sink[i] - top) : 0.0f);
        const float scale = sum[i] > 0.0f ? shrink / total : (sum[i] >= 0.0f ? 0.0f : NAN);
        for (int64_t e = 0; e < t->dv; ++e) out[e] = o[i * t->dv + e] * scale;
    }
}

void agk_flash_narrow_begin_scalar(const agk_flash_tile *t)
{
    agk_flash_begin_scalar(t);
}

void agk_flash_narrow_block_scalar(const agk_flash_tile *t, int64_t first, int64_t n, const void *k, const void *v)
{
    agk_flash_block_scalar(t, first, n, k, v);
}

void agk_flash_narrow_end_scalar(const agk_flash_tile *t)
{
    agk_flash_end_scalar(t);
}
