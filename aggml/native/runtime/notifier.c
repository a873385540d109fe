/* Notifier: one file descriptor for each event loop, written when a ticket that the loop's tasks wait for is done.
 *
 * It is an eventfd on Linux, a pipe elsewhere. It is written at most once between two drains. In the child of a fork
 * all descriptors of the parent's loops are closed, so that the child cannot wake them.
 */

/* Waits whose tickets are done are kept in a list of their notifier, in the order in which they became due, until the
 * loop takes them. So a loop that wakes looks only at what happened, not at everything that it waits for.
 *
 * No lock is held during a write: the loop that wakes takes the core from the writing thread immediately, and would
 * then sleep on that lock (5 us of the 25 from the end of work to the resumed task). A thread that uses a descriptor
 * counts itself in. A thread that closes a descriptor takes it away first and then waits for those users.
 *
 * The relay: a worker that spins on the core where an event loop sleeps wakes that loop, in place of the thread that
 * finished the work. A wake-up across cores is an interrupt: 27 us in a virtual machine, where a wake-up on the same
 * core takes 1.2 us. While a plan runs, a worker that finds nothing left to claim spins; on a busy machine it often
 * does so on the loop's core. The thread that finishes the work puts the notifier into that core's box and waits up to
 * RELAY_NS for a worker to take it. If none does, it takes the notifier back and writes to it itself. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/eventfd.h>
#endif

#include "internal.h"

#ifdef __linux__
#define WAKE_BYTES sizeof(uint64_t) /* bytes that a read of an eventfd needs */
#else
#define WAKE_BYTES 1
#endif

struct ag_notifier {
    atomic_int refs;
    atomic_bool signalled;
    /* the core of the loop when it last drained this or began to wait for a stream; the loop sleeps there */
    atomic_int cpu;
    /* threads that use the descriptors now; without this count, a thread could write to a descriptor that was closed
     * and reused */
    atomic_int users;
    atomic_int read_fd, write_fd;
    int courtesy; /* the handle of courtesy.c for the thread that made it, which is the loop's */
    unsigned generation;
    pthread_mutex_t due_lock;
    ag_wait *first, *last;           /* waits whose tickets are done and that the loop has not taken yet */
    struct ag_notifier *next, *prev; /* all open ones, for the fork handler */
};

static pthread_mutex_t *const list_lock = &ag_locks[AG_LOCK_NOTIFIERS];
/* read in the child of a fork, so the list must be intact after each single write */
static ag_notifier *open_notifiers;

#define RELAY_NS 2000 /* about four looks of the spinning worker */

typedef struct box {
    _Alignas(64) _Atomic(ag_notifier *) mail;
    atomic_int spinners;
} box;

static box boxes[AG_CPUS];

/* -- life --------------------------------------------------------------------------------------------------------- */

static bool open_fds(int fds[2])
{
#ifdef __linux__
    fds[0] = fds[1] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return fds[0] >= 0;
#else
    if (pipe(fds) != 0) return false;
    for (int i = 0; i < 2; ++i) {
        fcntl(fds[i], F_SETFD, FD_CLOEXEC);
        fcntl(fds[i], F_SETFL, O_NONBLOCK);
    }
    return true;
#endif
}

/* Takes the descriptors away and closes them once no thread uses them. Returns whether they were open. */
static bool close_fds(ag_notifier *notifier)
{
    pthread_mutex_lock(list_lock);
    int read_fd = atomic_exchange(&notifier->read_fd, -1), write_fd = atomic_exchange(&notifier->write_fd, -1);
    pthread_mutex_unlock(list_lock);
    if (read_fd < 0) return false;
    while (atomic_load(&notifier->users) != 0) nanosleep(&(struct timespec){.tv_nsec = 10000}, NULL);
    if (write_fd != read_fd) close(write_fd);
    close(read_fd);
    ag_courtesy_close(notifier->courtesy);
    return true;
}

static void forget(void) /* in the child of a fork: the loops, and the workers that spin, are the parent's */
{
    for (ag_notifier *n = open_notifiers; n != NULL;) {
        ag_notifier *next = n->next;
        atomic_store(&n->users, 0); /* those threads are the parent's */
        n->courtesy = -1;           /* its entry may soon belong to a loop of the child */
        close_fds(n);
        n->next = n->prev = NULL;
        n = next;
    }
    open_notifiers = NULL;

    /* the parent's workers do not exist here; a notifier left in a box is the parent's */
    for (int i = 0; i < AG_CPUS; ++i) {
        atomic_store(&boxes[i].mail, NULL);
        atomic_store(&boxes[i].spinners, 0);
    }
}

ag_notifier *ag_notifier_new(void)
{
    ag_at_fork(AG_FORK_NOTIFIERS, forget);
    ag_notifier *notifier = calloc(1, sizeof *notifier);
    int fds[2];
    if (notifier == NULL) return NULL;
    if (!open_fds(fds)) {
        free(notifier);
        return NULL;
    }
    atomic_init(&notifier->refs, 1);
    atomic_init(&notifier->cpu, -1);
    atomic_init(&notifier->users, 0);
    notifier->courtesy = ag_courtesy_open();
    notifier->generation = atomic_load(&ag_generation);
    pthread_mutex_init(&notifier->due_lock, NULL);
    atomic_init(&notifier->read_fd, fds[0]);
    atomic_init(&notifier->write_fd, fds[1]);
    pthread_mutex_lock(list_lock);
    notifier->next = open_notifiers;
    if (open_notifiers != NULL) open_notifiers->prev = notifier;
    open_notifiers = notifier;
    pthread_mutex_unlock(list_lock);
    return notifier;
}

ag_notifier *ag_notifier_ref(ag_notifier *notifier)
{
    atomic_fetch_add_explicit(&notifier->refs, 1, memory_order_relaxed);
    return notifier;
}

void ag_notifier_unref(ag_notifier *notifier)
{
    if (notifier == NULL || atomic_fetch_sub_explicit(&notifier->refs, 1, memory_order_acq_rel) != 1) return;
    ag_notifier_close(notifier);
    pthread_mutex_destroy(&notifier->due_lock);
    free(notifier);
}

void ag_notifier_close(ag_notifier *notifier)
{
    if (!close_fds(notifier)) return;
    pthread_mutex_lock(list_lock);
    if (notifier->prev != NULL) notifier->prev->next = notifier->next;
    if (notifier->next != NULL) notifier->next->prev = notifier->prev;
    if (open_notifiers == notifier) open_notifiers = notifier->next;
    notifier->next = notifier->prev = NULL;
    pthread_mutex_unlock(list_lock);
}

/* -- waking the loop ----------------------------------------------------------------------------------------------- */

static void write_to(ag_notifier *notifier)
{
    atomic_fetch_add(&notifier->users, 1);
    int fd = atomic_load(&notifier->write_fd);
    if (fd >= 0) {
        uint64_t one = 1;
        while (write(fd, &one, WAKE_BYTES) < 0 && errno == EINTR) continue;
    }
    atomic_fetch_sub(&notifier->users, 1);
}

void ag_relay_enter(int cpu)
{
    ag_at_fork(AG_FORK_NOTIFIERS, forget);
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
    write_to(notifier);
    ag_notifier_unref(notifier);
}

/* False: no spinning thread took it, so the caller writes. */
static bool hand(ag_notifier *notifier, int cpu)
{
    if (cpu < 0 || atomic_load(&boxes[cpu].spinners) <= 0 || ag_cpu_here() == cpu) return false;
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

int ag_notifier_fd(const ag_notifier *notifier)
{
    return atomic_load(&notifier->read_fd);
}

void ag_notifier_signal(ag_notifier *notifier)
{
    if (atomic_exchange(&notifier->signalled, true)) return;
    if (!hand(notifier, atomic_load_explicit(&notifier->cpu, memory_order_relaxed))) write_to(notifier);
}

void ag_notifier_drain(ag_notifier *notifier)
{
    uint64_t buffer[8];
    atomic_fetch_add(&notifier->users, 1);
    int fd = atomic_load(&notifier->read_fd);
    if (fd >= 0) {
        while (read(fd, buffer, sizeof buffer) < 0 && errno == EINTR) continue;
    }
    atomic_fetch_sub(&notifier->users, 1);
    /* Reset only now, after the drain: a signal from here on writes again. For an earlier signal, the look at the
     * list that follows the drain finds what it was about. */
    atomic_store(&notifier->signalled, false);
    ag_notifier_here(notifier);
}

int ag_notifier_cpu(const ag_notifier *notifier)
{
    return atomic_load_explicit(&notifier->cpu, memory_order_relaxed);
}

void ag_notifier_here(ag_notifier *notifier)
{
    int cpu = ag_cpu_here();
    if (atomic_load_explicit(&notifier->cpu, memory_order_relaxed) != cpu)
        atomic_store_explicit(&notifier->cpu, cpu, memory_order_relaxed);
}

/* -- what is due ------------------------------------------------------------------------------------------------ */

void ag_notifier_put(ag_notifier *notifier, ag_wait *wait)
{
    pthread_mutex_lock(&notifier->due_lock);
    wait->state = AG_WAIT_DUE;
    wait->next = NULL;
    wait->prev = notifier->last;
    *(notifier->last != NULL ? &notifier->last->next : &notifier->first) = wait;
    notifier->last = wait;
    pthread_mutex_unlock(&notifier->due_lock);
}

static void take_out(ag_notifier *notifier, ag_wait *wait)
{
    *(wait->prev != NULL ? &wait->prev->next : &notifier->first) = wait->next;
    *(wait->next != NULL ? &wait->next->prev : &notifier->last) = wait->prev;
    wait->next = wait->prev = NULL;
    wait->state = AG_WAIT_IDLE;
}

void ag_notifier_forget(ag_notifier *notifier, ag_wait *wait)
{
    pthread_mutex_lock(&notifier->due_lock);
    if (wait->state == AG_WAIT_DUE) take_out(notifier, wait);
    pthread_mutex_unlock(&notifier->due_lock);
}

ag_wait *ag_notifier_next_due(ag_notifier *notifier)
{
    /* a thread of the parent may have held the lock */
    if (notifier->generation != atomic_load(&ag_generation)) return NULL;
    pthread_mutex_lock(&notifier->due_lock);
    ag_wait *wait = notifier->first;
    if (wait != NULL) take_out(notifier, wait);
    pthread_mutex_unlock(&notifier->due_lock);
    return wait;
}
