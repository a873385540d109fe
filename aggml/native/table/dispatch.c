/* The table of kernel variants and of op lowerings, and the choice from them. */
#include "lower/chain.h"
#include "kernel_types.h"
#include "lower/refuse.h"

#define AGK_VARIANT(kernel, isa, needs) AGK_GATED(kernel, isa, needs, 0)
#define AGK_GATED(kernel, isa, needs, gate) {#kernel, #isa, needs, gate, (agk_any_fn *)agk_##kernel##_##isa},
const agk_variant agk_variants[] = {
#include "kernels.def"
};
#undef AGK_VARIANT
const size_t agk_n_variants = sizeof agk_variants / sizeof agk_variants[0];

static const agk_variant *first_of(const char *kernel, uint32_t cpu)
{
    for (size_t i = 0; i < agk_n_variants; ++i) {
        const agk_variant *variant = &agk_variants[i];
        const uint32_t wanted = variant->needs | variant->gate;
        if ((wanted & ~cpu) == 0 && strcmp(variant->kernel, kernel) == 0) return variant;
    }
    return NULL;
}

agk_any_fn *agk_pick_any(const char *kernel, uint32_t cpu)
{
    const agk_variant *variant = first_of(kernel, cpu);
    return variant != NULL ? variant->fn : NULL;
}

agk_any_fn *agk_pick_vector(const char *kernel, uint32_t cpu)
{
    const agk_variant *variant = first_of(kernel, cpu);
    return variant != NULL && strcmp(variant->isa, "scalar") != 0 ? variant->fn : NULL;
}

const agk_op_traits agk_ops[AGK_OP_COUNT] = {
#define AGK_OP(name, group, units, ps, in_place, stage, traits) \
    {#name, #group, ps, traits, AGK_UNITS_##units, in_place, AGK_STAGE_##stage},
#include "ops.def"
#undef AGK_OP
};

static agk_lower_fn *const lowerings[AGK_OP_COUNT] = {
#define AGK_OP(name, group, units, ps, in_place, stage, traits) agk_lower_##group,
#include "ops.def"
#undef AGK_OP
};

const char *agk_op_name(int op)
{
    return op >= 0 && op < AGK_OP_COUNT ? agk_ops[op].name : NULL;
}

int agk_op_find(const char *name)
{
    for (int op = 0; op < AGK_OP_COUNT; ++op) {
        if (strcmp(agk_ops[op].name, name) == 0) return op;
    }
    return -1;
}

agk_status agk_lower_none(agk_lowering *lowering)
{
    (void)lowering; /* views share the bytes of their source: no step */
    return AGK_OK;
}

/* A product may carry out stages while its result is in the cache; everything else that is fused is a chain. */
agk_status agk_lower(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const bool chain = node->n_stages > 0 && node->op != AGK_OP_mul_mat;
    const agk_status status = chain ? agk_lower_chain(lowering) : lowerings[node->op](lowering);
    if (status != AGK_OK || node->n_stages == 0 || lowering->fused) return status;
    return agk_refuse(lowering, AGK_UNSUPPORTED, "these steps take no stages");
}
