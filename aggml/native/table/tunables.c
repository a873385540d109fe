/* The table of tunables.def, and the values chosen for the whole process. */
#include "tunables.h"

#include <stdatomic.h>

#include "types.h"

const agk_tunable agk_tunables[AGK_TUNABLES] = {
#define AGK_TUNABLE(SYMBOL, name, least, most, what) {name, least, most, what},
#include "tunables.def"
#undef AGK_TUNABLE
};

static _Atomic(int32_t) chosen[AGK_TUNABLES];

int32_t agk_tuned(int i)
{
    return atomic_load_explicit(&chosen[i], memory_order_relaxed);
}

bool agk_tune(int i, int32_t value)
{
    if (value != 0 && (value < agk_tunables[i].least || value > agk_tunables[i].most)) return false;
    atomic_store_explicit(&chosen[i], value, memory_order_relaxed);
    return true;
}

static int block_of(int type)
{
    switch (type) {
#define AGK_TYPE(NAME, id, symbol, name, numpy, block, ...) \
    case AGK_##NAME: return block;
#include "types.def"
    default: return 1;
    }
}

int32_t agk_tuned_ahead(int type)
{
    switch (type) {
    case AGK_Q8_0: return agk_tuned(AGK_TUNE_AHEAD_Q8_0);
    case AGK_BF16: return agk_tuned(AGK_TUNE_AHEAD_BF16);
    case AGK_Q4_K:
    case AGK_Q5_K: return agk_tuned(AGK_TUNE_AHEAD_Q4_K);
    default: return agk_tuned(block_of(type) == 256 ? AGK_TUNE_AHEAD_Q6_K : AGK_TUNE_AHEAD_32);
    }
}
