/* Signals: every native thread blocks the signals of the process, so that a thread in sigwait gets them and the
 * process lives. */
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "rig.h"

static atomic_int looked;

static void check_mask(void)
{
    sigset_t mask;
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &mask) == 0);
    const int blocked[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCHLD, SIGALRM, SIGPROF};
    for (size_t i = 0; i < sizeof blocked / sizeof *blocked; ++i) CHECK(sigismember(&mask, blocked[i]) == 1);
    /* caused by the thread itself, and reported by faulthandler */
    const int open[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof open / sizeof *open; ++i) CHECK(sigismember(&mask, open[i]) == 0);
    atomic_fetch_add(&looked, 1);
}

/* Checks each worker: none ends its chunk before all have begun theirs. */
static agk_status look(const agk_task *task, const agk_node *node, int64_t chunk)
{
    (void)task;
    (void)chunk;
    check_mask();
    CHECK_SOON(atomic_load(&looked) >= (int)node->aux.i[1]);
    return AGK_OK;
}

int main(int argc, char **argv)
{
    enum { WORKERS = 3 };
    check_begin(argc, argv);
    sigset_t before, after, wanted;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    ag_pool *pool = rig_pool(WORKERS);
    ag_stream *stream = rig_stream(pool, 0);
    ag_plan *plan = rig_plan();
    rig_add(plan, look, WORKERS, -1, NULL, WORKERS);
    CHECK_EQ(rig_result(rig_start(stream, rig_plan_slot(plan, NULL))), 0);
    CHECK_EQ(rig_result(rig_start(stream, rig_delay(1000))), 0); /* starts the timers' thread */
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int s = 1; s < NSIG; ++s) CHECK_EQ(sigismember(&before, s), sigismember(&after, s));

    /* Blocked only now, as in a program that reads its options first. From here on only this thread takes them. */
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGTERM);
    sigaddset(&wanted, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &wanted, NULL);
    for (int i = 0; i < 50; ++i) {
        int got = 0, sent = i % 2 ? SIGTERM : SIGUSR1;
        CHECK(kill(getpid(), sent) == 0);
        CHECK(sigwait(&wanted, &got) == 0 && got == sent);
    }
    ag_plan_unref(plan);
    ag_stream_unref(stream);
    rig_end(pool);
    return 0;
}
