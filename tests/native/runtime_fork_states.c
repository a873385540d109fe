/* Fork while a thread of the parent holds a lock of the process, packs weights, or is one of the watched loops. The
 * child must not wait for that thread. Not here: calls that are refused in the child (runtime_fork.c). */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/mul_mat_packed.h"
#include "table/kernel_types.h"
#include "runtime/internal.h"
#include "runtime/packing.h"
#include "runtime/topology.h"
#include "rig.h"

#if defined(__SANITIZE_THREAD__)
enum {
    CHILD_MAY_START_THREADS = false
}; /* GCC 12's TSan does not support new threads in the child of a process that had threads */
#else
enum { CHILD_MAY_START_THREADS = true };
#endif

static void in_child(void (*run)(void *), void *argument)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        alarm(PATIENCE_S); /* kills a child that hangs, which the parent notices */
        run(argument);
        _exit(0);
    }
    int status;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(!WIFSIGNALED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
}

/* -- locks of the process ----------------------------------------------------------------------------------------- */

enum { LOCKS = AG_LOCKS + AG_MAX_BANKS }; /* the locks of ag_locks, then one timer lock for each bank */

static pthread_mutex_t *lock_of(int i)
{
    return i < AG_LOCKS ? &ag_locks[i] : ag_timer_lock(i - AG_LOCKS);
}

static atomic_bool held, let_go;

static void *hold(void *lock)
{
    pthread_mutex_lock(lock);
    atomic_store(&held, true);
    CHECK_SOON(atomic_load(&let_go));
    pthread_mutex_unlock(lock);
    return NULL;
}

/* Takes each of these locks directly, then calls functions that need them. */
static void use_all(void *unused)
{
    (void)unused;
    for (int i = 0; i < LOCKS; ++i) {
        CHECK(pthread_mutex_trylock(lock_of(i)) == 0);
        pthread_mutex_unlock(lock_of(i));
    }
    ag_error *error = ag_error_new(AG_DEVICE_ERROR, "device", "test", NULL, "on purpose");
    ag_storage *storage = ag_storage_new("s");
    ag_storage_set_poison(storage, error);
    ag_storage_unref(storage);
    ag_error_unref(error);
    ag_notifier *notifier = ag_notifier_new();
    CHECK(notifier != NULL);
    ag_notifier_signal(notifier);
    ag_notifier_unref(notifier);
    ag_streams_end(); /* must not look at the parent's streams */
    ag_timer_stop();
    if (!CHILD_MAY_START_THREADS) return;
    char name[AG_NAME];
    uint64_t pending;
    ag_pool *pool = rig_pool(2);
    ag_stream *stream = rig_stream(pool, 0);
    CHECK(rig_result(rig_start(stream, rig_delay(1000))) == 0);
    CHECK(ag_pool_close(pool, name, &pending));
    ag_stream_unref(stream);
    ag_pools_stop();
    ag_timer_stop();
    ag_pool_unref(pool);
}

static void with_each_lock_held(void)
{
    for (int i = 0; i < LOCKS; ++i) {
        pthread_t thread;
        atomic_store(&held, false);
        atomic_store(&let_go, false);
        CHECK(pthread_create(&thread, NULL, hold, lock_of(i)) == 0);
        CHECK_SOON(atomic_load(&held));
        in_child(use_all, NULL);
        atomic_store(&let_go, true);
        pthread_join(thread, NULL);
    }
}

/* -- weights that are being packed -------------------------------------------------------------------------------- */

enum { K = 4096, GROUPS = 3, ROWS = GROUPS * AGK_PACKED_ROWS, ROW = K / 32 * 34 };

/* rows of q8_0 on pages of their own: a thread that packs faults at its first read, and waits there */
static char *source;
static agk_packed *packed;
static char *expected;
static atomic_int inside;

static void wait_in_fault(int signal)
{
    (void)signal;
    atomic_store(&inside, 1);
    while (!atomic_load(&let_go)) continue;
    mprotect(source, ROWS * ROW, PROT_READ | PROT_WRITE);
}

static void *pack_one(void *unused)
{
    (void)unused;
    agk_packed_ready(packed, 1);
    return NULL;
}

static void all_groups(void *unused)
{
    (void)unused;
    mprotect(source, ROWS * ROW, PROT_READ | PROT_WRITE);
    const size_t size = agk_packed_group_bytes(agk_packed_layout_of(AGK_Q8_0), K);
    for (int i = 0; i < GROUPS; ++i) {
        CHECK(memcmp(agk_packed_ready(packed, i), expected + (size_t)i * size, size) == 0);
    }
}

static void child_of_child(void *argument)
{
    in_child(all_groups, argument); /* the packing was begun by the grandparent */
    all_groups(argument);
}

static void while_weights_are_packed(void)
{
    const size_t size = agk_packed_group_bytes(agk_packed_layout_of(AGK_Q8_0), K);
    source = mmap(NULL, ROWS * ROW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expected = malloc(GROUPS * size);
    CHECK(source != MAP_FAILED && expected != NULL);
    for (int i = 0; i < ROWS * ROW; ++i) source[i] = (char)(i * 7 % 251);
    for (int i = 0; i < GROUPS; ++i) {
        agk_mm_packed_group_scalar(AGK_Q8_0, source + i * AGK_PACKED_ROWS * ROW, ROW, AGK_PACKED_ROWS, K,
                                   expected + (size_t)i * size);
    }
    ag_storage *storage = ag_storage_new("w");
    agk_view view = {
        .addr = (uintptr_t)source, .ne = {K, ROWS, 1, 1}, .nb = {34, ROW, ROWS * ROW, ROWS * ROW}, .type = AGK_Q8_0};
    packed = agk_packed_acquire(&storage->weights, &view);
    CHECK(packed != NULL);
    struct sigaction action = {.sa_handler = wait_in_fault}, before;
    sigaction(SIGSEGV, &action, &before);
    /* first weights that were never packed, then weights that were written after packing */
    for (int i = 0; i < 2; ++i) {
        pthread_t thread;
        atomic_store(&let_go, false);
        atomic_store(&inside, 0);
        mprotect(source, ROWS * ROW, PROT_NONE);
        CHECK(pthread_create(&thread, NULL, pack_one, NULL) == 0);
        CHECK_SOON(atomic_load(&inside));
        in_child(all_groups, NULL);
        in_child(child_of_child, NULL);
        atomic_store(&let_go, true);
        pthread_join(thread, NULL);
        CHECK(memcmp(agk_packed_ready(packed, 1), expected + size, size) == 0);
        ag_storage_written(storage);
    }
    sigaction(SIGSEGV, &before, NULL);
    ag_packed_release(packed);
    ag_storage_unref(storage);
    munmap(source, ROWS * ROW);
    free(expected);
}

/* -- loops that are watched --------------------------------------------------------------------------------------- */

enum { WATCHED = 8 };
static ag_notifier *parents[WATCHED];

static void loops_have_room(void *unused)
{
    (void)unused;
    for (int i = 0; i < WATCHED; ++i) CHECK(ag_notifier_fd(parents[i]) == -1);
    int places[WATCHED];
    for (int i = 0; i < WATCHED; ++i) CHECK((places[i] = ag_courtesy_open()) >= 0);
    /* the parent's notifiers must not free the places, which other loops have now */
    for (int i = 0; i < WATCHED; ++i) ag_notifier_unref(parents[i]);
    CHECK(ag_courtesy_open() == -1);
    for (int i = 0; i < WATCHED; ++i) ag_courtesy_close(places[i]);
    CHECK(ag_courtesy_open() >= 0);
}

static void *open_and_close(void *unused)
{
    (void)unused;
    while (!atomic_load(&let_go)) {
        ag_notifier *notifier = ag_notifier_new();
        CHECK(notifier != NULL);
        ag_notifier_signal(notifier);
        ag_notifier_drain(notifier);
        ag_notifier_close(notifier);
        ag_notifier_unref(notifier);
    }
    return NULL;
}

static void while_loops_come_and_go(void)
{
#ifdef __linux__
    for (int i = 0; i < WATCHED - 1; ++i) CHECK((parents[i] = ag_notifier_new()) != NULL);
    parents[WATCHED - 1] = ag_notifier_ref(parents[0]);
    pthread_t thread;
    atomic_store(&let_go, false);
    CHECK(pthread_create(&thread, NULL, open_and_close, NULL) == 0);
    for (int i = 0; i < SCALED(100); ++i) {
        check_nap(i % 7 * 30);
        in_child(loops_have_room, NULL);
    }
    atomic_store(&let_go, true);
    pthread_join(thread, NULL);
    for (int i = 0; i < WATCHED; ++i) ag_notifier_unref(parents[i]);
#endif
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    ag_runtime_init();
    with_each_lock_held();
    while_weights_are_packed();
    while_loops_come_and_go();
    return 0;
}
