/* Which processors lie next to which memory: the banks of a machine (its NUMA nodes), as pools and the placement of
 * pages see them. Most machines have one; nothing here costs anything there. */
#ifndef AG_TOPOLOGY_H
#define AG_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>

#define AG_MAX_BANKS 8 /* further ones count with these */

int ag_banks(void);      /* with processors that this process may use; at least 1 */
int ag_bank_cores(void); /* usable processors of one of them, on average */
bool ag_bank_has(int bank, int cpu);
void ag_bank_stay(int bank); /* this thread runs on the processors of that bank only, where it may run on any of them */

/* A test's: pools made from here on, and placements, see so many processors in so many banks, of equal size. 0 banks:
 * the machine again. Nothing is bound to processors or memory that does not exist. */
void ag_topology_pretend(int cores, int banks);

/* Contiguous parts of equal size, in pages, one for each bank, are to lie there once they are touched: where ranges of
 * a step are claimed by the bank (plan_run.c), each thread reads memory next to it. How many parts were asked for; 0:
 * there is one bank. What was touched before stays. */
int ag_place(void *data, size_t size);
size_t ag_place_part(size_t size, int bank, int banks); /* where the part of a bank begins; a multiple of a page */

#endif
