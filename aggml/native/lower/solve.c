/* solve_tri: solves A x = b with A lower triangular, by forward substitution. If a zero is on a diagonal, the node
 * fails before anything is written.
 *
 * Here: the lowering and the steps. */
#include <stdio.h>

#include "table/kernel_types.h"
#include "units.h"

enum { COLUMNS = 32 }; /* columns of b that are solved together, so that a row of them stays in registers and L1 */

static agk_status check_diagonal(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)chunk;
    const agk_view *a = &node->src[0];
    const char *data = agk_data(task, a);
    for (int64_t plane = 0; plane < a->ne[2] * a->ne[3]; ++plane) {
        const char *at = data + plane % a->ne[2] * a->nb[2] + plane / a->ne[2] * a->nb[3];
        for (int64_t i = 0; i < a->ne[0]; ++i) {
            if (agk_load(AGK_F32, at + i * (a->nb[0] + a->nb[1])) != 0.0f) continue; /* NOLINT: exactly 0 */
            snprintf(task->message, AGK_MESSAGE, "[solve_tri] element %lld of the diagonal of matrix %lld is 0",
                     (long long)i, (long long)plane);
            return AGK_INVALID;
        }
    }
    return AGK_OK;
}

/* A unit is a block of columns of one matrix. */
static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *a = &node->src[0], *b = &node->src[1], *dst = &node->dst;
    const char *matrix = agk_data(task, a), *right = agk_data(task, b);
    char *y = agk_data(task, dst);
    const int64_t blocks = (b->ne[0] + COLUMNS - 1) / COLUMNS;
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t first = unit % blocks * COLUMNS, i2 = unit / blocks % a->ne[2], i3 = unit / blocks / a->ne[2];
        const int64_t n = b->ne[0] - first < COLUMNS ? b->ne[0] - first : COLUMNS;
        const char *rows = matrix + i2 * a->nb[2] + i3 * a->nb[3];
        const char *from = right + i2 * b->nb[2] + i3 * b->nb[3] + first * b->nb[0];
        char *to = y + i2 * dst->nb[2] + i3 * dst->nb[3] + first * dst->nb[0];
        for (int64_t i = 0; i < a->ne[1]; ++i) {
            float *x = (float *)(void *)(to + i * dst->nb[1]);
            float sum[COLUMNS] = {0};
            for (int64_t j = 0; j < i; ++j) {
                const float weight = agk_load(AGK_F32, rows + i * a->nb[1] + j * a->nb[0]);
                const float *solved = (const float *)(const void *)(to + j * dst->nb[1]);
                for (int64_t c = 0; c < n; ++c) sum[c] += weight * solved[c];
            }
            const float diagonal = agk_load(AGK_F32, rows + i * (a->nb[1] + a->nb[0]));
            for (int64_t c = 0; c < n; ++c) {
                x[c] = (agk_load(AGK_F32, from + i * b->nb[1] + c * b->nb[0]) - sum[c]) / diagonal;
            }
        }
    }
    return AGK_OK;
}

agk_status agk_lower_solve(agk_lowering *lowering)
{
    const agk_view *a = &lowering->node->src[0], *b = &lowering->node->src[1], *dst = &lowering->node->dst;
    agk_status status = agk_expect(lowering, "a", a, AGK_F32, a->ne[1], -1, b->ne[2], b->ne[3]);
    if (status == AGK_OK) status = agk_expect(lowering, "b", b, AGK_F32, -1, a->ne[1], -1, -1);
    if (status == AGK_OK) status = agk_expect_like(lowering, dst, b);
    if (status != AGK_OK || agk_nelements(dst) == 0) return status;
    const int64_t blocks = (b->ne[0] + COLUMNS - 1) / COLUMNS;
    agk_add_step(lowering, check_diagonal, 1);
    agk_add_units(lowering, run, blocks * a->ne[2] * a->ne[3], 10.0 + 0.5 * COLUMNS * (double)(a->ne[0] * a->ne[0]));
    return AGK_OK;
}
