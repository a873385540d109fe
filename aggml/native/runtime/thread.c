/* Threads: how each native thread of the process is started, and on which core the calling one is. Not here: what the
 * threads do.
 *
 * Signals belong to the program. A process that blocks SIGTERM in its own threads and receives it by sigwait would
 * die of it if one thread of this library accepted it. So each thread begins with all signals blocked, except those
 * that a thread raises by its own fault, which faulthandler and the sanitizers report. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>

#include "internal.h"

bool ag_thread_start(pthread_t *thread, void *(*body)(void *), void *argument, bool detached)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) sigdelset(&blocked, faults[i]);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, detached ? PTHREAD_CREATE_DETACHED : PTHREAD_CREATE_JOINABLE);
    pthread_sigmask(SIG_SETMASK, &blocked, &before); /* a thread inherits the mask of the thread that starts it */
    const bool started = pthread_create(thread, &attributes, body, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return started;
}

int ag_cpu_here(void)
{
#ifdef __linux__
    int cpu = sched_getcpu();
    return cpu < AG_CPUS ? cpu : -1;
#else
    return -1;
#endif
}
