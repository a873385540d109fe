/* The variants of a kernel that this machine can run, for programs that compare them with the scalar one. */
#ifndef TEST_VARIANTS_H
#define TEST_VARIANTS_H

#include <string.h>

#include "check.h"
#include "table/kernel_types.h"

/* Entry i of the table of variants, if it is a variant of `kernel` and this CPU has the features it needs; else
 * NULL. */
static inline agk_any_fn *variant(size_t i, const char *kernel)
{
    const agk_variant *v = &agk_variants[i];
    return (v->needs & ~agk_cpu_features()) == 0 && strcmp(v->kernel, kernel) == 0 ? v->fn : NULL;
}

/* n bytes at the beginning of a cache line, none of them zero. */
static inline void *bytes(size_t n)
{
    char *p = aligned_alloc(64, (n + 63) / 64 * 64);
    CHECK(p != NULL);
    memset(p, 0xa5, (n + 63) / 64 * 64);
    return p;
}

#endif
