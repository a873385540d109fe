/* What is chosen for this machine: of each kernel the first variant of the list that it can run, of every instruction set that
 * it has as much as the list knows. AGK_EXPECT in the environment names the one whose kernels must be the best: a check that an
 * emulated processor is seen as what it is. */
#include <string.h>

#include "check.h"
#include "table/kernel_types.h"

static bool runs(size_t i)
{
    return (agk_variants[i].needs & ~agk_cpu_features()) == 0;
}

/* Of the instruction sets of aarch64, the best last. */
static int rank(const char *isa)
{
    static const char *const names[] = {"scalar", "neon", "dotprod", "i8mm"};
    for (int i = 0; i < 4; ++i) {
        if (strcmp(names[i], isa) == 0) return i;
    }
    return -1;
}

int main(void)
{
    const char *expected = getenv("AGK_EXPECT"), *best = "scalar";
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_any_fn *chosen = agk_pick_any(agk_variants[i].kernel, agk_cpu_features());
        size_t first = 0;
        while (first < agk_n_variants &&
               (!runs(first) || strcmp(agk_variants[first].kernel, agk_variants[i].kernel) != 0)) {
            ++first;
        }
        CHECK(chosen ==
              (first < agk_n_variants ? agk_variants[first].fn : NULL)); /* attention in bf16 has no plain C */
        if (runs(i) && rank(agk_variants[i].isa) > rank(best)) best = agk_variants[i].isa;
    }
    if (expected != NULL && strcmp(best, expected) != 0) {
        fprintf(stderr, "the best kernels are those of %s, not of %s\n", best, expected);
        return 1;
    }
    return 0;
}
