/* Tuning parameters for this machine (tunables.def). They decide when memory is prefetched and which thread computes
 * what. They never change the results.
 *
 * Not here: measuring and keeping them (aggml/cli/tune.py, aggml/devices/cpu/tuning.py). */
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

int32_t agk_tuned(int i);            /* 0: no value was chosen */
bool agk_tune(int i, int32_t value); /* false: the value is out of range; 0 is allowed */

/* How many bytes ahead packed weights of a type are prefetched; 0: no value was chosen. */
int32_t agk_tuned_ahead(int type);

#endif
