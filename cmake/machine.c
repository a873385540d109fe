/* Prints the instruction sets of isas.def that this machine runs, joined by semicolons as CMake's lists are: for
 * AGGML_ISAS=native. Not part of the library. */
#include <stdio.h>

#include "table/cpu_features.c"

int main(void)
{
    const uint32_t found = agk_cpu_features();
    for (size_t i = 0; i < agk_n_isas; ++i) {
        if ((agk_isas[i].needs & ~found) == 0) printf("%s%s", i > 0 ? ";" : "", agk_isas[i].name);
    }
    return 0;
}
