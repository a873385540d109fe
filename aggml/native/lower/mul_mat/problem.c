/* What a product asks of a scheme, and which kernel of a scheme serves a type. Not here: the choice (choice.c). */
#include <ctype.h>
#include <stdio.h>

#include "scheme.h"
#include "ends.h"

agk_mm_problem agk_mm_problem_of(const agk_lowering *lowering)
{
    const agk_view *a = &lowering->node->src[0], *b = &lowering->node->src[1];
    return (agk_mm_problem){.a = a->type,
                            .b = b->type,
                            .m = a->ne[1],
                            .n = b->ne[1],
                            .k = a->ne[0],
                            .batches = b->ne[2] * b->ne[3],
                            .weights = lowering->weights != NULL,
                            .cpu = lowering->cpu,
                            .ends = lowering->node->n_stages > 0 || lowering->node->for_columns,
                            .panels = lowering->source != NULL || agk_mm_narrows(lowering->node),
                            .exact = agk_mm_is_exact(lowering->node)};
}

bool agk_mm_is_exact(const agk_node *node)
{
    enum { OF_B = 3, BF16 = 15, F16 = 20, Q8 = 30 }; /* the slot; precisions of ggml, the greatest number the least */
    const int type = node->src[0].type, prec = node->params[OF_B];
    if (prec == 0 || type == AGK_F32) return false; /* columns of f32 rows are never converted to less */
    return prec < (type == AGK_BF16 ? BF16 : type == AGK_F16 ? F16 : Q8);
}

agk_any_fn *agk_mm_kernel_of_type(const char *prefix, int type, uint32_t cpu)
{
    char name[48];
    snprintf(name, sizeof name, "%s%s", prefix, agk_traits(type)->name);
    for (char *c = name; *c != '\0'; ++c) *c = (char)tolower((unsigned char)*c);
    return agk_pick_vector(name, cpu);
}
