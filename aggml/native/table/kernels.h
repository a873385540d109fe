/* The table of variants of kernels: features, the choice, the features of this processor.
 *
 * Not here: signatures of kernels (kernel_types.h), what steps and lowerings see (lower/node.h). */
#ifndef AGK_KERNELS_H
#define AGK_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ops.h"
#include "types.h"

/* CPU features of isas.def, as bits: those that a variant needs, this machine has, or a plan may use. */
enum {
#define AGK_FEATURE(NAME, bit, architecture, ggml, found) AGK_##NAME = 1u << bit,
#include "isas.def"
};

/* kernels.def: every variant of every kernel, one line each, the best first; scalar closes each group. A kernel
 * is an inner function with one signature (declared in kernel_types.h); steps call it through agk_pick. */
typedef void agk_any_fn(void);

typedef struct agk_variant {
    const char *kernel;
    const char *isa;
    uint32_t needs; /* features without which it cannot run */
    uint32_t gate;  /* further ones without which the next variant is better */
    agk_any_fn *fn;
} agk_variant;

extern const agk_variant agk_variants[];
extern const size_t agk_n_variants;

/* The sets of isas.def, the plainest first. */
typedef struct agk_isa {
    const char *name;
    uint32_t needs, takes;
} agk_isa;

extern const agk_isa agk_isas[];
extern const size_t agk_n_isas;

/* The first variant of `kernel` whose needs and gate are within `cpu`; kernels are found at plan compile, never per
 * run. */
agk_any_fn *agk_pick_any(const char *kernel, uint32_t cpu);
/* The same, but NULL where plain C would be the best: whether there is anything to serve with. */
agk_any_fn *agk_pick_vector(const char *kernel, uint32_t cpu);
#define AGK_PICK(kernel, cpu) ((agk_##kernel##_fn *)agk_pick_any(#kernel, (cpu)))

/* Whether a kernel that was picked is the one in plain C: some 4 to 40 times slower, so its chunks are smaller. */
#define AGK_IS_PLAIN(kernel, fn) ((agk_any_fn *)(fn) == (agk_any_fn *)agk_##kernel##_scalar)

uint32_t agk_cpu_features(void); /* of this machine, OS register state included */

/* A feature of isas.def by its bit; `ggml` is "NONE" if ggml has no name for it. */
typedef struct agk_feature {
    const char *name, *ggml;
    uint32_t bit;
} agk_feature;

extern const agk_feature agk_features[];
extern const size_t agk_n_features;

/* One feature under ggml's name: what this machine has (a flag, or bytes), and whether the plain units, those without
 * flags of their own, were compiled with it. */
typedef struct agk_cpu_fact {
    const char *name;
    int usable;
    int base;
} agk_cpu_fact;

size_t agk_cpu_report(agk_cpu_fact *out, size_t room); /* returns how many there are */

#endif
