/* The clock of the runtime. */
#include <time.h>

#include "base.h"

uint64_t ag_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
