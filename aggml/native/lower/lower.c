/* From a node to its steps: by its op, or as a chain. Not here: the lowerings themselves, one file for each group of
 * ops. */
#include "chain.h"
#include "refuse.h"

static agk_lower_fn *const lowerings[AGK_OP_COUNT] = {
#define AGK_OP(name, group, units, ps, in_place, stage, traits) agk_lower_##group,
#include "table/ops.def"
#undef AGK_OP
};

agk_status agk_lower_none(agk_lowering *lowering)
{
    (void)lowering; /* views share the bytes of their source: no step */
    return AGK_OK;
}

/* Stages are the nodes that are fused with this one. A product carries them out itself, while its result is in the
 * cache, and then sets `fused`. All other nodes with stages are lowered as a chain. */
agk_status agk_lower(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const bool chain = node->n_stages > 0 && node->op != AGK_OP_mul_mat;
    const agk_status status = chain ? agk_lower_chain(lowering) : lowerings[node->op](lowering);
    if (status != AGK_OK || node->n_stages == 0 || lowering->fused) return status;
    return agk_refuse(lowering, AGK_UNSUPPORTED, "this operation cannot be fused with those after it");
}
