/* Relay: a worker that spins on the core where an event loop sleeps wakes that loop, in place of the thread that
 * finished the work.
 *
 * A wake-up across cores is an interrupt: 27 us in a virtual machine, where a wake-up on the same core takes 1.2 us.
 * While a plan runs, a worker that finds nothing left to claim spins; on a busy machine it often does so on the
 * loop's core. The thread that finishes the work puts the notifier into that core's box and waits up to RELAY_NS for
 * a worker to take it. If none does, it takes the notifier back and writes to it itself. Not here: the writing
 * (notifier.c). */
#define _GNU_SOURCE
#include <sched.h>

#include "internal.h"

#define RELAY_NS 2000 /* about four looks of the spinning worker */
#define RELAY_CPUS 1024

typedef struct box {
    _Alignas(64) _Atomic(ag_notifier *) mail;
    atomic_int spinners;
} box;

static box boxes[RELAY_CPUS];

int ag_relay_cpu(void)
{
#ifdef __linux__
    int cpu = sched_getcpu();
    return cpu < RELAY_CPUS ? cpu : -1;
#else
    return -1;
#endif
}

void ag_relay_enter(int cpu)
{
    if (cpu >= 0) atomic_fetch_add(&boxes[cpu].spinners, 1);
}

void ag_relay_leave(int cpu)
{
    if (cpu >= 0) atomic_fetch_sub(&boxes[cpu].spinners, 1);
}

void ag_relay_serve(int cpu)
{
    if (cpu < 0 || atomic_load_explicit(&boxes[cpu].mail, memory_order_relaxed) == NULL) return;
    ag_notifier *notifier = atomic_exchange(&boxes[cpu].mail, NULL);
    if (notifier == NULL) return;
    ag_notifier_write(notifier);
    ag_notifier_unref(notifier);
}

bool ag_relay_hand(ag_notifier *notifier, int cpu)
{
    if (cpu < 0 || atomic_load(&boxes[cpu].spinners) <= 0 || ag_relay_cpu() == cpu) return false;
    ag_notifier *none = NULL;
    ag_notifier_ref(notifier); /* a reference for the worker that takes it */
    if (!atomic_compare_exchange_strong(&boxes[cpu].mail, &none, notifier)) {
        ag_notifier_unref(notifier);
        return false;
    }
    uint64_t end = ag_now() + RELAY_NS;
    while (ag_now() < end) {
        if (atomic_load(&boxes[cpu].mail) != notifier) return true;
        ag_pause();
    }
    /* It was not taken. The box may by now hold the same notifier, put there by another thread: then each of the two
     * writes. */
    ag_notifier *mine = notifier;
    if (!atomic_compare_exchange_strong(&boxes[cpu].mail, &mine, NULL)) return true;
    ag_notifier_unref(notifier);
    return false;
}

void ag_relay_forked(void)
{
    /* the parent's workers do not exist here; a notifier left in a box is the parent's */
    for (int i = 0; i < RELAY_CPUS; ++i) {
        atomic_store(&boxes[i].mail, NULL);
        atomic_store(&boxes[i].spinners, 0);
    }
}
