/* The table of variants of kernels: features, the choice of a variant, the features of this processor.
 *
 * Not here: signatures of kernels (kernel_types.h), the types that steps and lowerings use (lower/node.h). */
#ifndef AGK_KERNELS_H
#define AGK_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ops.h"
#include "types.h"

/* CPU features of isas.def, as bits. The same bits say which features a variant needs, which this machine has, and
 * which a plan may use. */
enum {
#define AGK_FEATURE(NAME, bit, architecture, ggml, found) AGK_##NAME = 1u << bit,
#include "isas.def"
};

/* What every variant for an instruction set needs, and the gate that all of them have. */
enum {
#define AGK_ISA(name, architecture, needs, gate, takes, flags) AGK_NEEDS_##name = needs, AGK_GATE_##name = gate,
#include "isas.def"
};

/* kernels.def: every variant of every kernel, one line each, the best first; scalar closes each group. A kernel is
 * an inner function with one signature (declared in kernel_types.h). Steps call it through agk_pick. */
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

/* The instruction sets of isas.def, the plainest first. */
typedef struct agk_isa {
    const char *name;
    uint32_t needs, takes;
} agk_isa;

extern const agk_isa agk_isas[];
extern const size_t agk_n_isas;

/* The first variant of `kernel` whose needs and gate are within `cpu`. Called when a plan is compiled, never during
 * a run. */
agk_any_fn *agk_pick_any(const char *kernel, uint32_t cpu);
/* The same, but NULL if the best variant is the one in plain C. So this tells whether a faster kernel serves at all. */
agk_any_fn *agk_pick_vector(const char *kernel, uint32_t cpu);
#define AGK_PICK(kernel, cpu) ((agk_##kernel##_fn *)agk_pick_any(#kernel, (cpu)))

/* Whether a kernel that was picked is the one in plain C. That one is some 4 to 40 times slower, so its chunks are
 * made smaller. */
#define AGK_IS_PLAIN(kernel, fn) ((agk_any_fn *)(fn) == (agk_any_fn *)agk_##kernel##_scalar)

uint32_t agk_cpu_features(void); /* of this machine, including what register state the operating system saves */

/* A feature of isas.def by its bit; `ggml` is "NONE" if ggml has no name for it. */
typedef struct agk_feature {
    const char *name, *ggml;
    uint32_t bit;
} agk_feature;

extern const agk_feature agk_features[];
extern const size_t agk_n_features;

/* One feature under ggml's name: the value on this machine (a flag, or a number of bytes), and whether the plain
 * files, those without compiler flags of their own, were compiled with it. */
typedef struct agk_cpu_fact {
    const char *name;
    int usable;
    int base;
} agk_cpu_fact;

size_t agk_cpu_report(agk_cpu_fact *out, size_t room); /* returns how many features there are */

#endif
