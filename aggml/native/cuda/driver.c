/* The table of the driver's entries. Not here: where the addresses come from (devices/cuda/driver.py). */
#include <string.h>

#include "driver.h"

ag_cu_table ag_cu;

const char *const ag_cu_names[] = {
#define X(name, arguments) #name,
    AG_CU_ENTRIES(X)
#undef X
};
const size_t ag_cu_n_names = sizeof ag_cu_names / sizeof *ag_cu_names;

void ag_cu_set(size_t index, uintptr_t address)
{
    memcpy((char *)&ag_cu + index * sizeof address, &address, sizeof address); /* C has no conversion to a function */
}

bool ag_cu_complete(void)
{
    uintptr_t address;
    for (size_t i = 0; i < ag_cu_n_names; ++i) {
        memcpy(&address, (char *)&ag_cu + i * sizeof address, sizeof address);
        if (address == 0) return false;
    }
    return true;
}
