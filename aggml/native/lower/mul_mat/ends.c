/* Which stages an epilogue carries out, and where it stores (ends.h). */
#include "ends.h"

#include "lower/refuse.h"
#include "lower/unary.h"

/* The operand of a stage, if an epilogue can read it: rows of floats. */
static const agk_view *operand(const agk_node *node, const agk_stage *stage)
{
    const agk_view *v = stage->operand >= 0 && agk_has(node, stage->operand) ? &node->src[stage->operand] : NULL;
    return v != NULL && v->type == AGK_F32 && v->nb[0] == 4 ? v : NULL;
}

static bool is_bias(const agk_node *node, int i)
{
    if (i >= node->n_stages || node->stage[i].op != AGK_OP_add) return false;
    const agk_view *v = operand(node, &node->stage[i]);
    return v != NULL && v->ne[0] == node->dst.ne[0] && agk_nrows(v) == 1;
}

/* A sum with a tensor of the shape of the result, or, if no function comes before it, a gated unit. */
static bool is_other(const agk_node *node, int i, bool has_act)
{
    if (i >= node->n_stages) return false;
    const agk_stage *stage = &node->stage[i];
    const agk_view *v = operand(node, stage);
    if (v == NULL || !agk_same_shape(v, &node->dst)) return false;
    if (stage->op == AGK_OP_add) return true;
    return !has_act && agk_ops[stage->op].stage == AGK_STAGE_GATED && agk_mm_end_takes(agk_gate_of(stage->op));
}

/* A bias, a function, then another operand or the conversion to bf16, in this order; each of them may be missing. */
void agk_mm_ends_choose(agk_mm_panels_plan *p, const agk_node *node)
{
    int8_t i = 0;
    p->bias = p->act = p->other = -1;
    if (is_bias(node, i)) p->bias = i++;
    if (i < node->n_stages && agk_mm_end_takes(node->stage[i].op)) p->act = i++;
    if (is_other(node, i, p->act >= 0)) p->other = i++;
    if (p->other < 0 && agk_mm_narrows(node)) ++i;
    p->ends = i == node->n_stages;
}

/* Where the columns begin that a product of `k` rows hands to the product that follows it: those of row `row`, a
 * multiple of 32, and of the first column of unit `unit`, in blocks of k_block. ld_unit: distance to the next unit. */
static char *given_columns(char *columns, int64_t units, int64_t k, int64_t k_block, size_t unit_32, int64_t row,
                           int64_t unit, size_t *ld_unit)
{
    const int64_t k0 = row / k_block * k_block;
    *ld_unit = (size_t)agk_panel_steps(agk_mm_least(k_block, k - k0)) * unit_32;
    return columns + (size_t)(units * agk_panel_steps(k0)) * unit_32 + (size_t)unit * *ld_unit +
           (size_t)agk_panel_steps(row - k0) * unit_32;
}

agk_mm_end agk_mm_ends_of(const agk_task *task, const agk_node *node, const agk_mm_panels_plan *p, const agk_mm_item *t,
                          int64_t row, bool stages)
{
    const agk_view *c = &node->dst;
    agk_mm_end e = {.c = (float *)(void *)(t->c + c->nb[0] * row + t->col * c->nb[1]),
                    .ldc = (size_t)c->nb[1],
                    .narrow = c->type == AGK_BF16,
                    .act = -1};
    if (!stages) return e;
    if (p->bias >= 0) {
        e.bias = (const float *)agk_data(task, &node->src[node->stage[p->bias].operand]) + t->row + row;
    }
    if (p->act >= 0) e.act = node->stage[p->act].op;
    if (p->other >= 0) {
        const agk_stage *stage = &node->stage[p->other];
        const agk_view *v = &node->src[stage->operand];
        e.other = agk_mm_matrix(task, v, t->i2, t->i3) + 4 * (t->row + row) + t->col * v->nb[1];
        e.ld_other = (size_t)v->nb[1];
        e.gated = stage->op != AGK_OP_add;
        e.gates = e.gated && stage->first;
        if (e.gated) e.act = agk_gate_of(stage->op);
    }
    if (node->columns_k > 0) {
        e.form = node->columns_form;
        e.units = given_columns(agk_data(task, c), agk_mm_ceil_div(c->ne[1], AGK_MM_UNIT), c->ne[0], node->columns_k,
                                agk_columns_unit_32(e.form), t->row + row, t->col / AGK_MM_UNIT, &e.ld_unit);
    }
    return e;
}

/* Whether columns in this form fit into the place of the floats b. Then the node that computes b can write them. */
static bool fit(const agk_view *b, agk_columns_form form)
{
    const int64_t k = b->ne[0], n = b->ne[1];
    const bool dense = b->type == AGK_F32 && b->nb[0] == 4 && b->nb[1] == 4 * k && b->ne[2] == 1 && b->ne[3] == 1;
    const int64_t steps = agk_mm_ceil_div(n, AGK_MM_UNIT) * agk_panel_steps(k);
    return dense && (size_t)steps * agk_columns_unit_32(form) <= (size_t)(4 * k * n);
}

void agk_mm_ends_columns(agk_lowering *lowering, const agk_mm_panels_plan *p, uint32_t gives)
{
    agk_node *node = lowering->node;
    node->gives_columns = (uint8_t)(node->for_columns && p->ends ? gives : 0);
    node->has_columns = p->form != 0 && lowering->source != NULL &&
                        (lowering->source->gives_columns >> p->form & 1) != 0 && fit(&node->src[1], p->form);
}
