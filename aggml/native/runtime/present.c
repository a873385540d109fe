/* Whether bytes that may belong to a file are in memory. Reading a page that is not there waits for the disk, 0.1 ms
 * to 10 ms, during which an event loop must not stand still. The check takes 0.2 us, so only a few pages are
 * checked. */
#define _DEFAULT_SOURCE /* mincore */
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

enum { MOST_PAGES = 64 };

#ifdef __APPLE__
typedef char presence;
#else
typedef unsigned char presence;
#endif

bool ag_present(ag_backing backing, uintptr_t first, size_t size)
{
    if (backing == AG_IN_MEMORY || size == 0) return true;
    if (backing == AG_UNTOLD) return false;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = first & ~(page - 1);
    const size_t pages = (first + size - from + page - 1) / page;
    presence in_memory[MOST_PAGES];
    if (pages > MOST_PAGES || mincore((void *)from, pages * page, in_memory) != 0) return false; /* NOLINT */
    for (size_t i = 0; i < pages; ++i) {
        if ((in_memory[i] & 1) == 0) return false;
    }
    return true;
}
