/* concat: a and b, one after the other along a dimension, of any type including quantized ones.
 *
 * Here: the lowering. Not here: the copies (copy.c), views (lower.c: nothing to do). */
#include "copy.h"
#include "table/kernel_types.h"
#include "units.h"

enum { UNITS_A, TRANSPOSE, ROW }; /* slots of node->aux */

/* The part of the result that comes from operand i. */
static agk_view part_of(const agk_node *node, int i)
{
    agk_view part = node->dst;
    memcpy(part.ne, node->src[i].ne, sizeof part.ne);
    if (i == 1) {
        const int dim = node->params[0];
        const int64_t n = node->src[0].ne[dim];
        part.addr += (uintptr_t)((dim == 0 ? n / agk_traits(part.type)->blck_size : n) * part.nb[dim]);
    }
    return part;
}

static void run_part(const agk_task *task, const agk_node *node, int i, int64_t first, int64_t last)
{
    const agk_view part = part_of(node, i);
    const agk_copy copy = agk_copy_plan(&part, &node->src[i], node->aux.fn[TRANSPOSE], node->aux.fn[ROW]);
    agk_copy_run(&copy, agk_data(task, &part), agk_data(task, &node->src[i]), first, last);
}

/* Units of a, then units of b. */
static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_range units = agk_units_of(node, chunk);
    const int64_t first = units.first, last = units.last, of_a = node->aux.i[UNITS_A];
    if (first < of_a) run_part(task, node, 0, first, last < of_a ? last : of_a);
    if (last > of_a) run_part(task, node, 1, first > of_a ? first - of_a : 0, last - of_a);
    return AGK_OK;
}

agk_status agk_lower_shape(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *a = &node->src[0], *b = &node->src[1];
    const int dim = node->params[0];
    if (dim < 0 || dim > 3) return agk_refuse(lowering, AGK_INVALID, "dimension %d is not within 0..3", dim);
    if (a->type != b->type || dst->type != a->type || agk_traits(a->type)->name == NULL) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s, b is %s and the result is %s; all must have one type",
                          agk_type_name(a->type), agk_type_name(b->type), agk_type_name(dst->type));
    }
    for (int d = 0; d < 4; ++d) {
        const bool fits = d == dim ? dst->ne[d] == a->ne[d] + b->ne[d] : dst->ne[d] == a->ne[d] && b->ne[d] == a->ne[d];
        if (fits && (d > 0 || a->ne[0] % agk_traits(a->type)->blck_size == 0)) continue;
        return agk_refuse(lowering, AGK_INVALID,
                          "in dimension %d a has %lld elements, b %lld and the result %lld: they do not fit together",
                          d, (long long)a->ne[d], (long long)b->ne[d], (long long)dst->ne[d]);
    }
    if (agk_nelements(dst) == 0) return AGK_OK;
    node->aux.fn[TRANSPOSE] = agk_copy_transpose(dst->type, lowering->cpu);
    node->aux.fn[ROW] = (agk_any_fn *)AGK_PICK(cpy_row, lowering->cpu);
    int64_t units[2] = {0, 0};
    for (int i = 0; i < 2; ++i) {
        if (agk_nelements(&node->src[i]) == 0) continue;
        const agk_view part = part_of(node, i);
        units[i] = agk_copy_plan(&part, &node->src[i], NULL, NULL).units;
    }
    node->aux.i[UNITS_A] = units[0];
    const int64_t both = units[0] + units[1];
    agk_add_units(lowering, run, both, agk_copy_ns(dst, both));
    return AGK_OK;
}
