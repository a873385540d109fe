/* Courtesy: a worker yields its core to an event loop that is waiting for exactly this core.
 *
 * Not here: where workers breathe (plan_run.c; kernels, through agk_breathe). */

/* The hints to the kernel's scheduler (sched.c) do not always suffice: a loop that used more than its share stays
 * behind a worker until the kernel's tick, 4 ms away. So every 0.25 ms one of the workers checks where the thread of
 * a loop is. If that thread is runnable on the core of a worker, it is waiting there, and that worker yields.
 * Workers yield only if a loop waits: workers that yielded at regular times got next to nothing when two busy
 * processes ran on the same machine. Linux reports the state of a thread in /proc, 1.3 us for each look; on other
 * systems nobody looks. Effect, for embeddings on two cores: the 1 ms ticks in which the loop waited for a core went
 * from p99.9 2.2 ms to 1.0 ms; the rest is spent waiting for other processes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

#define LOOK_NS 250000
/* a longer interval if a look takes long, as under an emulated kernel: 1 % of the time, but at least this often */
#define SELDOM_NS 10000000
#define LOOPS 8      /* at most so many loops; further loops wait as long as the kernel lets them */
#define CPU_FIELD 39 /* the field of proc(5)'s stat that tells the core; the state is the third field */

typedef struct loop_thread {
    /* descriptor of the stat of a loop's thread, plus 1; 0: none, -1: it is being closed */
    _Alignas(64) atomic_int fd;
    /* threads that use the descriptor now; without this count, a thread could read a descriptor that was closed and
     * reused */
    atomic_int users;
    atomic_int runs_on;       /* the core it was runnable on at the last look, plus 1; 0: it slept */
    atomic_uint_fast64_t due; /* time of the next look */
} loop_thread;

static loop_thread loops[LOOPS];
static atomic_int n_loops; /* the greatest number that was ever in use */
static atomic_uint_fast64_t yields;
static _Thread_local bool works;

static void forget(void) /* in the child: the loops, and the workers that look at them, are the parent's */
{
    for (int i = 0; i < LOOPS; ++i) {
        const int fd = atomic_exchange(&loops[i].fd, 0);
        if (fd > 0) close(fd - 1); /* -1: a thread was closing it, and may or may not have done so */
        atomic_store(&loops[i].users, 0);
        atomic_store(&loops[i].runs_on, 0);
    }
}

int ag_courtesy_open(void)
{
#ifdef __linux__
    ag_at_fork(AG_FORK_COURTESY, forget);
    const int fd = open("/proc/thread-self/stat", O_RDONLY | O_CLOEXEC);
    for (int i = 0; fd >= 0 && i < LOOPS; ++i) {
        int none = 0;
        if (!atomic_compare_exchange_strong(&loops[i].fd, &none, fd + 1)) continue;
        int n = atomic_load(&n_loops);
        while (n <= i && !atomic_compare_exchange_weak(&n_loops, &n, i + 1)) continue;
        return i;
    }
    if (fd >= 0) close(fd);
#endif
    return -1;
}

void ag_courtesy_close(int loop)
{
    if (loop < 0) return;
    const int fd = atomic_exchange(&loops[loop].fd, -1);
    while (atomic_load(&loops[loop].users) != 0) sched_yield();
    if (fd > 0) close(fd - 1);
    atomic_store(&loops[loop].runs_on, 0);
    atomic_store(&loops[loop].fd, 0);
}

uint64_t ag_courtesy_yields(void)
{
    return atomic_load_explicit(&yields, memory_order_relaxed);
}

void ag_courtesy_worker(void)
{
    works = true;
}

#ifdef __linux__
/* The core, plus 1, of a thread that is runnable, else 0. The second field is the thread's name, which may hold any
 * character; it ends at the last parenthesis. */
static int runnable_on(const char *stat)
{
    const char *at = strrchr(stat, ')');
    if (at == NULL || at[1] != ' ' || at[2] != 'R') return 0;
    for (int field = 2; field < CPU_FIELD; ++field) {
        at = strchr(at + 1, ' ');
        if (at == NULL) return 0;
    }
    return (int)strtol(at + 1, NULL, 10) + 1;
}

static void look(loop_thread *loop)
{
    char stat[512]; /* 200 to 350 bytes */
    atomic_fetch_add(&loop->users, 1);
    const int fd = atomic_load(&loop->fd) - 1;
    const uint64_t begin = ag_now();
    const ssize_t n = fd < 0 ? 0 : pread(fd, stat, sizeof stat - 1, 0);
    const uint64_t end = ag_now(), pause = 100 * (end - begin);
    atomic_fetch_sub(&loop->users, 1);
    if (pause > LOOK_NS) atomic_store(&loop->due, end + (pause < SELDOM_NS ? pause : SELDOM_NS));
    stat[n > 0 ? n : 0] = '\0'; /* nothing: the thread has ended */
    const int core = runnable_on(stat);
    atomic_store(&loop->runs_on, core);
    if (core != sched_getcpu() + 1) return;
    atomic_fetch_add_explicit(&yields, 1, memory_order_relaxed);
    sched_yield(); /* this thread occupies that core, so the waiting one cannot run there */
}

void ag_courtesy_breathe(void)
{
    const int n = atomic_load_explicit(&n_loops, memory_order_relaxed);
    if (n == 0 || !works) return;
    const uint64_t now = ag_now();
    for (int i = 0; i < n; ++i) {
        uint64_t due = atomic_load_explicit(&loops[i].due, memory_order_relaxed);
        const int core = atomic_load_explicit(&loops[i].runs_on, memory_order_relaxed);
        const bool mine = now >= due && atomic_compare_exchange_strong(&loops[i].due, &due, now + LOOK_NS);
        if (mine || (core != 0 && core == sched_getcpu() + 1)) look(&loops[i]);
    }
}
#else
void ag_courtesy_breathe(void)
{
}
#endif
