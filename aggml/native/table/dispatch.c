/* The table of kernel variants and the choice from it; the names of ops. Not here: lowerings of ops (lower/lower.c). */
#include "kernel_types.h"

#define AGK_VARIANT(kernel, isa, extras) AGK_GATED(kernel, isa, extras, 0)
#define AGK_GATED(kernel, isa, extras, gate) \
    {#kernel, #isa, AGK_NEEDS_##isa | (extras), AGK_GATE_##isa | (gate), (agk_any_fn *)agk_##kernel##_##isa},
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
