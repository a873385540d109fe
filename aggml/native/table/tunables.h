/* Numbers that are chosen for the machine at hand (tunables.def). They decide when memory is asked for and who computes
 * what, never what is computed.
 *
 * Not here: who measures and keeps them (aggml/cli/tune.py, aggml/devices/cpu/tuning.py). */
#ifndef AGK_TUNABLES_H
#define AGK_TUNABLES_H

#include <stdbool.h>
#include <stdint.h>

enum {
#define AGK_TUNABLE(SYMBOL, name, least, most, what) AGK_TUNE_##SYMBOL,
#include "tunables.def"
#undef AGK_TUNABLE
    AGK_TUNABLES
};

typedef struct agk_tunable {
    const char *name;
    int32_t least, most;
    const char *what;
} agk_tunable;

extern const agk_tunable agk_tunables[AGK_TUNABLES];

int32_t agk_tuned(int i);            /* 0: nobody chose */
bool agk_tune(int i, int32_t value); /* false: outside of its range; 0 is allowed */

/* Bytes ahead for packed weights of a type; 0: nobody chose. */
int32_t agk_tuned_ahead(int type);

#endif
