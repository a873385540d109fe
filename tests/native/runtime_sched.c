/* The scheduling attributes that loop and worker threads ask of the kernel, read back from it. */
#define _GNU_SOURCE
#include <pthread.h>
#ifdef __linux__
#include <sched.h>
#include <spawn.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "check.h"
#include "runtime/runtime.h"

#if defined(__linux__) && defined(SYS_sched_getattr)
typedef struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
} attributes;

static attributes mine(void)
{
    attributes a;
    memset(&a, 0, sizeof a);
    CHECK(syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) == 0);
    return a;
}

static bool slices(void) /* whether the kernel knows slices: since Linux 6.12 */
{
    struct utsname name;
    int major = 0, minor = 0;
    CHECK(uname(&name) == 0 && sscanf(name.release, "%d.%d", &major, &minor) == 2);
    return major > 6 || (major == 6 && minor >= 12);
}

static void *loop(void *unused)
{
    (void)unused;
    attributes before = mine();
    ag_sched_loop();
    ag_sched_loop();
    attributes after = mine();
    CHECK(after.policy == before.policy && after.nice == before.nice && after.priority == before.priority);
    if (slices()) CHECK(after.runtime == 100000);
    return NULL;
}

static void *own_slice(void *unused)
{
    (void)unused;
    CHECK(mine().runtime != 100000);
    return NULL;
}

/* Threads and programs that a loop starts must not inherit its slice, whether by fork, or by vfork and exec as
 * subprocess does. */
static void *loop_that_starts_others(void *unused)
{
    (void)unused;
    ag_sched_loop();
    if (slices()) CHECK(mine().runtime == 100000);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, own_slice, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    int status;
    pid_t child = fork();
    if (child == 0) _exit(mine().runtime == 100000 ? 1 : 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    char *arguments[] = {"runtime_sched", "own slice", NULL};
    CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return NULL;
}

static void *worker(void *unused)
{
    (void)unused;
    attributes before = mine();
    ag_sched_worker();
    attributes after = mine();
    CHECK(after.policy == SCHED_BATCH);
    CHECK(after.nice == (before.nice + 2 > 19 ? 19 : before.nice + 2));
    if (slices()) CHECK(after.runtime == 20000000);
    ag_sched_worker(); /* a second call must add nothing */
    CHECK(mine().nice == after.nice);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "own slice") == 0) return mine().runtime == 100000 ? 1 : 0;
    check_begin(argc, argv);
    if (mine().policy != SCHED_OTHER) {
        puts("skipped: this process does not run as SCHED_OTHER");
        return 0;
    }
    void *(*const roles[])(void *) = {loop, loop_that_starts_others, worker};
    for (int i = 0; i < 3; ++i) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, roles[i], NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    return 0;
}
#else
int main(void)
{
    puts("skipped: no sched_setattr on this system");
    return 0;
}
#endif
