/* Which processors lie next to which memory: the banks of a machine (its NUMA nodes), for pools and for the
 * placement of pages. Most machines have one bank, and nothing here costs anything there. */
#ifndef AG_TOPOLOGY_H
#define AG_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>

#define AG_MAX_BANKS 8 /* further banks count as part of these */
#define AG_CPUS 1024   /* hyperthreads beyond these are not seen */

int ag_banks(void);      /* banks with processors that this process may use; at least 1 */
int ag_bank_cores(void); /* usable processors of a bank, on average */
bool ag_bank_has(int bank, int cpu);
void ag_bank_stay(int bank); /* this thread runs only on the processors of that bank, if it may run on any of them */

/* Adds those of a list such as "0-3,8" in a file; returns how many it names, -1: there is no such file. */
int ag_cpu_list(const char *path, bool cpus[AG_CPUS]);

/* For tests: pools and placements made from here on see so many processors in so many banks, of equal size. 0 banks:
 * the real machine again. Nothing is bound to processors or memory that does not exist. */
void ag_topology_pretend(int cores, int banks);

/* Asks for the memory to be cut into contiguous parts of equal size, in pages, one for each bank; each lies there
 * once it is touched. Where banks claim ranges of a step (plan_run.c), each thread then reads memory next to it.
 * Returns the number of parts; 0: there is one bank. Pages that were touched before stay where they are. */
int ag_place(void *data, size_t size);
/* the offset at which the part of a bank begins; a multiple of a page */
size_t ag_place_part(size_t size, int bank, int banks);

#endif
