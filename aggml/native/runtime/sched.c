/* Hints to the kernel's scheduler: which thread runs first when an event loop and the workers want the same core.
 *
 * On Linux this needs no privileges; other systems get no hints. A loop that wakes must not wait for the end of a
 * worker's slice, which the kernel ends only at its 4 ms tick. Two cores, two workers, a 1 ms ticker on the loop
 * (p99.9 in ms, medians of four interleaved runs of 3000 ticks, asyncio): with the workers' slice alone 3.1, with
 * the loop's slice added 2.8, with the workers' lower weight added 2.1. A trace of the scheduler showed that the
 * loop, although it used little time, waited up to 9 ms behind a worker before, and 2.5 ms after. The rest is spent
 * waiting for kernel threads and a core that the host took away. Not here: which threads get these hints
 * (threadpool.c, binding). */
#define _GNU_SOURCE
#include <errno.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#include <sys/syscall.h>
#endif

#include "runtime.h"

#define LOOP_SLICE_NS 100000 /* the shortest slice that the kernel accepts */
#define WORKER_SLICE_NS 20000000
#define RESET_ON_FORK 1 /* SCHED_FLAG_RESET_ON_FORK */
/* 0.64 of a thread's weight: 39 % instead of 50 % of a core that another process wants, too */
#define WORKER_NICE 2

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
    /* if refused, nothing changes; kernels before 6.12 ignore the slice */
    syscall(SYS_sched_setattr, 0, attributes, 0);
    errno = before;
}

void ag_sched_worker(void)
{
    ag_sched_attr attributes;
    if (!get(&attributes) || attributes.sched_policy != SCHED_OTHER) return;
    attributes.sched_policy = SCHED_BATCH; /* a worker that wakes preempts no other thread */
    attributes.sched_runtime = WORKER_SLICE_NS;
    attributes.sched_nice += WORKER_NICE;
    if (attributes.sched_nice > 19) attributes.sched_nice = 19;
    set(&attributes);
}

/* Only this thread shall have the short slice. Threads and programs that it starts must not inherit it, or they
 * would compete with loops on even terms. So the kernel resets it for them, but it can only reset everything: a
 * negative nice value, which needs a privilege, would be lost as well. So a loop that has one does not get the short
 * slice. Afterwards only a process with that privilege may give this thread another policy. */
void ag_sched_loop(void)
{
    ag_sched_attr attributes;
    if (!get(&attributes) || attributes.sched_policy != SCHED_OTHER) return;
    if (attributes.sched_runtime <= LOOP_SLICE_NS || attributes.sched_nice < 0)
        return; /* 0: the kernel knows no slices */
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
