/* Mappings are given back: small ones at once, large ones by a thread, also in the child of a fork that the thread
 * did not reach, and with many threads that give back at the same time. */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "runtime/runtime.h"

enum { PAGE = 4096, SMALL = 8 * PAGE, LARGE = 40 << 20 };

static char *mapped(size_t size)
{
    char *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(data != MAP_FAILED);
    for (size_t at = 0; at < size; at += PAGE) data[at] = 1;
    return data;
}

/* msync says ENOMEM for addresses that are not mapped; nothing else may map there meanwhile */
static bool is_mapped(char *data, size_t size)
{
    return msync(data, size, MS_ASYNC) == 0;
}

static void a_small_one_is_gone_at_once(void)
{
    char *data = mapped(SMALL);
    ag_unmap(data, SMALL);
    CHECK(!is_mapped(data, SMALL));
    CHECK(!ag_unmapped()); /* so nothing was to wait for */
}

static void a_large_one_is_gone_soon(void)
{
    char *data = mapped(LARGE), *odd = mapped(LARGE + 3 * PAGE);
    ag_unmap(data, LARGE);
    ag_unmap(odd, LARGE + 3 * PAGE);
    ag_unmapped();
    CHECK(!is_mapped(data, LARGE));
    CHECK(!is_mapped(odd, LARGE + 3 * PAGE));
}

static void *give_back(void *unused)
{
    for (int i = 0; i < SCALED(40); ++i) {
        const size_t size = (size_t)(1 + i % 5) << 19; /* some start the thread, some only use it */
        ag_unmap(mapped(size), size);
        if (i % 8 == 0) ag_unmapped();
    }
    return unused;
}

static void threads_do_not_disturb_each_other(void)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; ++i) CHECK(pthread_create(&threads[i], NULL, give_back, NULL) == 0);
    for (int i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
    ag_unmapped();
    CHECK(!ag_unmapped());
}

static void a_child_gives_back_its_own(void)
{
    char *data[8];
    for (int i = 0; i < 8; ++i) data[i] = mapped(LARGE);
    char *own = mapped(LARGE);
    for (int i = 0; i < 8; ++i) ag_unmap(data[i], LARGE); /* the thread is at work when the fork happens */
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        ag_unmapped();                                              /* does not wait for the parent's thread */
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) /* they allow no new threads, or no malloc, here */
        ag_unmap(own, LARGE);
        ag_unmapped();
        CHECK(!is_mapped(own, LARGE));
#endif
        _Exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_EQ(status, 0);
    CHECK(is_mapped(own, LARGE)); /* the parent's is untouched */
    ag_unmap(own, LARGE);
    ag_unmapped();
    CHECK(!is_mapped(own, LARGE));
}

int main(void)
{
    ag_runtime_init();
    a_small_one_is_gone_at_once();
    a_large_one_is_gone_soon();
    threads_do_not_disturb_each_other();
    a_child_gives_back_its_own();
    return 0;
}
