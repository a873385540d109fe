/* A worker yields to an event loop that waits for the worker's core, and to nothing else. Loop and worker are pinned
 * to one core. */
#define _GNU_SOURCE
#include <pthread.h>
#ifdef __linux__
#include <sched.h>
#include <unistd.h>
#endif

#include "check.h"
#include "runtime/internal.h"

#ifdef __linux__
typedef struct loop {
    pthread_t thread;
    ag_notifier *notifier;
    atomic_bool busy, ends; /* orders to the loop's thread */
    atomic_int state;       /* what the thread does: 1 sleeps, 2 is busy */
    pthread_mutex_t lock;
    pthread_cond_t changed;
} loop;

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    CHECK(pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0);
}

static void *run_loop(void *argument)
{
    loop *x = argument;
    x->notifier = ag_notifier_new();
    CHECK(x->notifier != NULL);
    pthread_mutex_lock(&x->lock);
    while (!atomic_load(&x->ends)) {
        atomic_store(&x->state, 1);
        while (!atomic_load(&x->busy) && !atomic_load(&x->ends)) pthread_cond_wait(&x->changed, &x->lock);
        pthread_mutex_unlock(&x->lock);
        atomic_store(&x->state, 2);
        while (atomic_load(&x->busy) && !atomic_load(&x->ends)) continue;
        pthread_mutex_lock(&x->lock);
    }
    pthread_mutex_unlock(&x->lock);
    return NULL;
}

static void tell(loop *x, bool busy)
{
    pthread_mutex_lock(&x->lock);
    atomic_store(&x->busy, busy);
    pthread_cond_signal(&x->changed);
    pthread_mutex_unlock(&x->lock);
    while (atomic_load(&x->state) != (busy ? 2 : 1)) sched_yield();
}

/* How often the thread yielded in 20 ms, in which it looks for waiting loops some dozens of times. */
static uint64_t yields_meanwhile(void)
{
    const uint64_t before = ag_courtesy_yields(), end = ag_now() + 20000000;
    while (ag_now() < end) ag_courtesy_breathe();
    return ag_courtesy_yields() - before;
}

static void *work(void *argument)
{
    loop *x = argument;
    tell(x, true);
    CHECK(yields_meanwhile() == 0); /* no yield: the thread is not a worker, it may itself be a loop that runs a plan */
    ag_courtesy_worker();
    CHECK(yields_meanwhile() > 0);
    tell(x, false);
    yields_meanwhile(); /* the loop's thread may still be on its way to sleep */
    CHECK(yields_meanwhile() == 0);
    return NULL;
}

static void *work_elsewhere(void *argument)
{
    const int *cpu = argument;
    pin(*cpu);
    ag_courtesy_worker();
    CHECK(yields_meanwhile() == 0);
    return NULL;
}

static void *loops_come_and_go(void *argument)
{
    (void)argument;
    for (int i = 0; i < SCALED(2000); ++i) {
        ag_notifier *many[12]; /* more loops than are watched */
        for (int j = 0; j < 12; ++j) CHECK((many[j] = ag_notifier_new()) != NULL);
        for (int j = 0; j < 12; ++j) ag_notifier_unref(many[j]);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    cpu_set_t usable;
    CHECK(sched_getaffinity(0, sizeof usable, &usable) == 0);
    int cpus[2], n = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE && n < 2; ++cpu) {
        if (CPU_ISSET((size_t)cpu, &usable)) cpus[n++] = cpu;
    }
    if (access("/proc/thread-self/stat", R_OK) != 0) {
        puts("skipped: no /proc here");
        return 0;
    }
    pin(cpus[0]); /* threads that are started from here inherit this */
    loop x = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    CHECK(pthread_create(&x.thread, NULL, run_loop, &x) == 0);
    pthread_t worker;
    CHECK(pthread_create(&worker, NULL, work, &x) == 0);
    CHECK(pthread_join(worker, NULL) == 0);
    if (n == 2) { /* no yield to a loop that runs on another core */
        tell(&x, true);
        CHECK(pthread_create(&worker, NULL, work_elsewhere, &cpus[1]) == 0);
        CHECK(pthread_join(worker, NULL) == 0);
    }
    atomic_store(&x.ends, true);
    tell(&x, true);
    CHECK(pthread_join(x.thread, NULL) == 0);
    ag_courtesy_worker();
    CHECK(yields_meanwhile() == 0); /* the loop's thread has ended, while its notifier still exists */
    ag_notifier_unref(x.notifier);
    CHECK(pthread_create(&worker, NULL, loops_come_and_go, NULL) == 0);
    for (int i = 0; i < 50; ++i) yields_meanwhile();
    CHECK(pthread_join(worker, NULL) == 0);
    return 0;
}
#else
int main(void)
{
    puts("skipped: looks are for Linux");
    return 0;
}
#endif
