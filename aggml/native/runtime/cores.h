/* How fast each core is compared with the fastest kind of core of the machine, for pools. On most machines all cores
 * are equal, and nothing here costs anything there. Not here: banks of memory (topology.h). */
#ifndef AG_CORES_H
#define AG_CORES_H

#include <stdbool.h>

#define AG_FULL_SPEED 16 /* the speed of a performance core */

/* Usable cores, not their hyperthreads, of a machine that tells its kinds; both 0: it does not, or has no efficiency
 * core that this process may use. */
typedef struct ag_core_kinds {
    int performance, efficiency;
} ag_core_kinds;
ag_core_kinds ag_cores(void);

bool ag_cores_differ(void);  /* whether some of the cores that this process may use are slower than others */
int ag_usable_cores(void);   /* how many cores it may use; 0: they do not differ, so they were not counted */
int ag_usable_threads(void); /* how many hyperthreads it may use */

/* The speed of the core with this hyperthread, for one of n_threads threads; 1 to AG_FULL_SPEED. Two hyperthreads of a
 * core have half of it each if there are more threads than cores. A core that is not known has the mean speed. */
int ag_core_speed(int cpu, int n_threads);
bool ag_core_same(int cpu, int other); /* whether these are hyperthreads of one core */
int ag_core_here(int worker); /* the hyperthread where this thread runs, the worker of that index; -1: unknown */

/* For tests: pools made from here on see a machine whose files are in the folder `root` instead of in /sys. The file
 * `usable` there has the list of hyperthreads that the process may use; worker i counts as running on the i-th of them.
 * NULL: the real machine again. No pool may run that saw other cores that differ. */
void ag_cores_pretend(const char *root);

#endif
