/* flash_attn_ext of few rows and many keys: puts together the states of a row after each part of the keys.
 *
 * Not here: how keys are cut into parts (flash_attn_ext.c), how a part is computed (flash_decode.c, flash_shared.c). */
#include <math.h>

#include "flash_plan.h"

float *agk_flash_part_at(const agk_task *task, const agk_node *node, int64_t batch, int64_t part, int64_t row)
{
    const agk_flash_decode_plan p = agk_flash_decode_plan_of(node);
    const int64_t rows = node->src[0].ne[1] * node->src[0].ne[2], floats = 2 + node->dst.ne[0];
    float *first = (float *)(void *)((char *)agk_work(task, node) + p.room);
    return first + ((batch * rows + row) * p.parts + part) * floats; /* the order in which they are put together */
}

void agk_flash_save_part(const agk_task *task, const agk_node *node, const agk_flash_tile *t, int64_t batch,
                         int64_t part, int64_t row, bool any)
{
    const agk_flash_narrow f = agk_flash_narrow_of(t);
    for (int64_t r = 0; r < t->n_rows; ++r) {
        float *to = agk_flash_part_at(task, node, batch, part, row + r);
        to[0] = any ? f.max[r] : -INFINITY;
        to[1] = any ? f.sum[r] : 0.0f;
        if (any) memcpy(to + 2, f.o + r * t->dv, (size_t)t->dv * sizeof(float));
    }
}

int64_t agk_flash_combined(const agk_node *node, int64_t parts)
{
    const double ns = (double)parts * (0.5 * (double)node->dst.ne[0] + 20.0);
    return agk_units_per_chunk(agk_nrows(&node->src[0]), ns);
}

/* For each row, does what the END of a kernel does with the state of one unit. */
agk_status agk_flash_combine_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *q = &node->src[0], *dst = &node->dst, *sinks = &node->src[4];
    const int64_t per_batch = q->ne[1] * q->ne[2], all = per_batch * q->ne[3],
                  parts = agk_flash_decode_plan_of(node).parts, dv = dst->ne[0];
    const int64_t per_chunk = agk_flash_combined(node, parts);
    for (int64_t i = chunk * per_chunk; i < all && i < (chunk + 1) * per_chunk; ++i) {
        const int64_t batch = i / per_batch, row = i % per_batch, head = row / q->ne[1];
        float *out = (float *)(void *)((char *)agk_data(task, dst) + head * dst->nb[1] + row % q->ne[1] * dst->nb[2] +
                                       batch * dst->nb[3]);
        float sink = -INFINITY;
        if (agk_has(node, 4)) memcpy(&sink, (char *)agk_data(task, sinks) + head * sinks->nb[0], sizeof sink);
        float top = sink, total = 0.0f;
        for (int64_t part = 0; part < parts; ++part) {
            const float max = agk_flash_part_at(task, node, batch, part, row)[0];
            if (max > top) top = max;
        }
        const float safe = top > -INFINITY ? top : 0.0f;
        bool none = true;
        for (int64_t e = 0; e < dv; ++e) out[e] = 0.0f;
        for (int64_t part = 0; part < parts; ++part) {
            const float *x = agk_flash_part_at(task, node, batch, part, row);
            if (x[1] <= 0.0f && x[1] >= 0.0f) continue; /* the part saw no key, so its sums may hold anything */
            const float weight = expf(x[0] - safe);
            none = false;
            total += weight * x[1];
            for (int64_t e = 0; e < dv; ++e) out[e] += weight * x[2 + e];
        }
        total += expf(sink - safe);
        for (int64_t e = 0; e < dv; ++e) out[e] = none ? 0.0f : out[e] / total;
    }
    return AGK_OK;
}
