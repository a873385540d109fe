/* repeat: a tensor of any type, repeated; repeat_back: for each element, the sum of all its repetitions.
 *
 * Here: the lowering and the steps. Not here: repeats inside binary ops (binary.c). */
#include "table/kernel_types.h"
#include "units.h"

enum { ADD, ROW }; /* slots of node->aux: the kernels of repeat_back and of repeat */

/* Bytes from the begin of `small` to the row that stands in row `row` of its repetition `large`. */
static int64_t source_row_offset(const agk_view *large, const agk_view *small, int64_t row)
{
    const int64_t i1 = row % large->ne[1], i2 = row / large->ne[1] % large->ne[2],
                  i3 = row / large->ne[1] / large->ne[2];
    return i1 % small->ne[1] * small->nb[1] + i2 % small->ne[2] * small->nb[2] + i3 % small->ne[3] * small->nb[3];
}

static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const agk_type_traits *traits = agk_traits(a->type);
    const size_t size = traits->type_size;
    const int64_t n = a->ne[0] / traits->blck_size, times = dst->ne[0] / a->ne[0];
    const char *x = agk_data(task, a);
    char *y = agk_data(task, dst);
    agk_cpy_row_fn *copy = (agk_cpy_row_fn *)node->aux.fn[ROW];
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t row = units.first; row < units.last; ++row) {
        const char *from = x + source_row_offset(dst, a, row);
        char *to = y + agk_row_offset(dst, row);
        if (n == 1 && size == 4 && dst->nb[0] == 4) { /* one element fills the whole row */
            uint32_t bits;
            memcpy(&bits, from, sizeof bits);
            for (int64_t k = 0; k < times; ++k) ((uint32_t *)(void *)to)[k] = bits;
            continue;
        }
        if (a->nb[0] == (int64_t)size) {
            copy(n * (int64_t)size, to, from);
        } else {
            for (int64_t i = 0; i < n; ++i) memcpy(to + (size_t)i * size, from + i * a->nb[0], size);
        }
        for (int64_t k = 1; k < times; ++k) copy(n * (int64_t)size, to + (size_t)(k * n) * size, to);
    }
    return AGK_OK;
}

/* A unit is a row of the result. Rows of the source are added to it in their order. */
static agk_status run_back(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const char *x = agk_data(task, a);
    char *y = agk_data(task, dst);
    int64_t times[4];
    for (int d = 0; d < 4; ++d) times[d] = a->ne[d] / dst->ne[d];
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t row = units.first; row < units.last; ++row) {
        const int64_t i1 = row % dst->ne[1], i2 = row / dst->ne[1] % dst->ne[2], i3 = row / dst->ne[1] / dst->ne[2];
        float *sum = (float *)(void *)(y + agk_row_offset(dst, row));
        memset(sum, 0, (size_t)dst->ne[0] * sizeof *sum);
        for (int64_t k = 0; k < times[1] * times[2] * times[3]; ++k) {
            const char *from = x + (i1 + k % times[1] * dst->ne[1]) * a->nb[1] +
                               (i2 + k / times[1] % times[2] * dst->ne[2]) * a->nb[2] +
                               (i3 + k / times[1] / times[2] * dst->ne[3]) * a->nb[3];
            for (int64_t k0 = 0; k0 < times[0]; ++k0, from += dst->ne[0] * a->nb[0]) {
                if (a->nb[0] == 4) {
                    const agk_binary_rows rows = {.y = (char *)sum, .a = (const char *)sum, .b = from};
                    ((agk_binary_f32_fn *)node->aux.fn[ADD])(AGK_OP_add, dst->ne[0], 1, &rows);
                    continue;
                }
                for (int64_t i = 0; i < dst->ne[0]; ++i) sum[i] += agk_load(AGK_F32, from + i * a->nb[0]);
            }
        }
    }
    return AGK_OK;
}

agk_status agk_lower_shape_repeat(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const bool back = node->op == AGK_OP_repeat_back;
    const agk_view *a = &node->src[0], *dst = &node->dst, *large = back ? a : dst, *small = back ? dst : a;
    if (a->type != dst->type || agk_traits(a->type)->name == NULL || (back && a->type != AGK_F32)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED,
                          "a is %s and the result is %s; both must have one type that can be copied",
                          agk_type_name(a->type), agk_type_name(dst->type));
    }
    if (agk_nelements(dst) == 0) return AGK_OK;
    for (int d = 0; d < 4; ++d) {
        if (small->ne[d] > 0 && large->ne[d] % small->ne[d] == 0) continue;
        return agk_refuse(lowering, AGK_INVALID, "%lld elements in dimension %d are no multiple of %lld",
                          (long long)large->ne[d], d, (long long)small->ne[d]);
    }
    if (back) {
        node->aux.fn[ADD] = (agk_any_fn *)AGK_PICK(binary_f32, lowering->cpu);
        agk_add_units(lowering, run_back, agk_nrows(dst), (double)agk_nelements(a) / (double)agk_nrows(dst) + 10.0);
    } else {
        node->aux.fn[ROW] = (agk_any_fn *)AGK_PICK(cpy_row, lowering->cpu);
        const double ns = a->nb[0] == (int64_t)agk_traits(a->type)->type_size ? 0.2 : 1.0;
        agk_add_units(lowering, run, agk_nrows(dst), 10.0 + ns * (double)dst->ne[0]);
    }
    return AGK_OK;
}
