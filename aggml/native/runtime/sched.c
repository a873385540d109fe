/* What the kernel's scheduler is told: whose turn it is when an event loop and the workers want one core.
 *
 * Linux, without any right; elsewhere nothing is told. A loop that wakes must not wait for the end of a worker's turn,
 * which the kernel ends only at its 4 ms tick. Two cores, two workers, a 1 ms ticker on the loop (p99.9 in ms, medians
 * of four interleaved runs of 3000 ticks, asyncio): with the workers' slice alone 3.1, with the loop's 2.8, with the
 * workers' lower weight 2.1. A trace of the scheduler showed the loop, hardly used, waiting up to 9 ms behind a worker
 * before, 2.5 ms after; what is left waits for kernel threads and a stolen core. Not here: which threads those are
 * (threadpool.c, binding). */
#define _GNU_SOURCE
#include <errno.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#include <sys/syscall.h>
#endif

#include "runtime.h"

#define LOOP_SLICE_NS 100000 /* the least the kernel takes */
#define WORKER_SLICE_NS 20000000
#define RESET_ON_FORK 1 /* SCHED_FLAG_RESET_ON_FORK */
#define WORKER_NICE 2   /* 0.64 of a thread's weight; 39 % of a core that another process wants, too, not 50 */

#if defined(__linux__) && defined(SYS_sched_setattr)
/* The kernel's struct sched_attr, first version; not every libc has it. */
typedef struct ag_sched_attr {
    uint32_t size, sched_policy;
    uint64_t sched_flags;
    int32_t sched_nice;
    uint32_t sched_priority;
    uint64_t sched_runtime, sched_deadline, sched_period;
} ag_sched_attr;

static bool get(ag_sched_attr *attributes)
{
    return syscall(SYS_sched_getattr, 0, attributes, sizeof *attributes, 0) == 0;
}

static void set(ag_sched_attr *attributes)
{
    int const before = errno;
    syscall(SYS_sched_setattr, 0, attributes, 0); /* refused: as before; kernels before 6.12 ignore the slice */
    errno = before;
}

void ag_sched_worker(void)
{
    ag_sched_attr attributes;
    if (!get(&attributes) || attributes.sched_policy != SCHED_OTHER) return;
    attributes.sched_policy = SCHED_BATCH; /* a worker that wakes preempts nobody */
    attributes.sched_runtime = WORKER_SLICE_NS;
    attributes.sched_nice += WORKER_NICE;
    if (attributes.sched_nice > 19) attributes.sched_nice = 19;
    set(&attributes);
}

/* The slice is this thread's alone: threads and programs that it starts must not have it, or they would compete with
 * loops on even terms. The kernel takes it from them, and only all at once: a negative nice value, which takes a right,
 * would go as well, so a loop that has one keeps its slice. From then on only who has that right may give this thread
 * another policy. */
void ag_sched_loop(void)
{
    ag_sched_attr attributes;
    if (!get(&attributes) || attributes.sched_policy != SCHED_OTHER) return;
    if (attributes.sched_runtime <= LOOP_SLICE_NS || attributes.sched_nice < 0)
        return; /* 0: a kernel that knows none */
    attributes.sched_runtime = LOOP_SLICE_NS;
    attributes.sched_flags |= RESET_ON_FORK;
    set(&attributes);
}
#else
void ag_sched_worker(void)
{
}
void ag_sched_loop(void)
{
}
#endif
