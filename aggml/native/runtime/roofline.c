/* The peak performance of the machine: operations per second, bytes read and copied per second, by any number of
 * threads.
 *
 * Here: threads of its own that begin together, and the clock. Not here: the loops of instructions
 * (kernels/<isa>/peak.c), the measurements that are compared with these figures. */
#include <sched.h>

#include "internal.h"
#include "roofline.h"
#include "table/kernel_types.h"

enum { MOST = AG_ROOFLINE_THREADS, TURNS = 2000 };

typedef struct task {
    agk_peak_f32_fn *peak; /* NULL: memory is read, or copied if `to` is given */
    agk_peak_read_fn *read;
    const char *from;
    char *to;
    size_t size;
    int repeats;
    double seconds; /* the result of a peak kernel */
    atomic_int *waiting;
    uint64_t begun, ended; /* ns */
    double amount;
} task;

static void *carry_out(void *argument)
{
    task *t = argument;
    if (t->peak != NULL) t->peak(TURNS); /* a warm-up, because wide execution units take a while to power up */
    atomic_fetch_sub(t->waiting, 1);
    while (atomic_load(t->waiting) > 0) sched_yield();
    t->begun = ag_now();
    do {
        if (t->peak != NULL) {
            t->amount += t->peak(TURNS) * TURNS;
            continue;
        }
        for (int i = 0; i < t->repeats; ++i) {
            if (t->to == NULL)
                t->read((int64_t)t->size, t->from);
            else
                memcpy(t->to, t->from, t->size);
            t->amount += (double)t->size * (t->to == NULL ? 1 : 2);
        }
    } while (t->peak != NULL && (double)(ag_now() - t->begun) < 1e9 * t->seconds);
    t->ended = ag_now();
    return NULL;
}

/* Units per second from the first beginning to the last end; a negative number if not all threads start. */
static double together(task *tasks, int n)
{
    pthread_t threads[MOST];
    atomic_int waiting = n;
    int started = 0;
    for (int i = 0; i < n; ++i) tasks[i].waiting = &waiting;
    for (int i = 1; i < n; ++i) {
        if (!ag_thread_start(&threads[i], carry_out, &tasks[i], false)) break;
        started = i;
    }
    atomic_fetch_sub(&waiting, n - 1 - started); /* the others must not wait for threads that could not be started */
    carry_out(&tasks[0]);
    for (int i = 1; i <= started; ++i) pthread_join(threads[i], NULL);
    uint64_t begun = tasks[0].begun, ended = tasks[0].ended;
    double amount = tasks[0].amount;
    for (int i = 1; i <= started; ++i) {
        begun = tasks[i].begun < begun ? tasks[i].begun : begun;
        ended = tasks[i].ended > ended ? tasks[i].ended : ended;
        amount += tasks[i].amount;
    }
    return started == n - 1 ? 1e9 * amount / (double)(ended - begun) : -1;
}

double ag_roofline_peak(const char *kernel, const char *isa, int n, double seconds)
{
    task tasks[MOST] = {{0}};
    for (size_t i = 0; i < agk_n_variants; ++i) {
        const agk_variant *v = &agk_variants[i];
        const bool runs = (v->needs & ~agk_cpu_features()) == 0;
        if (strcmp(kernel, "peak_read") == 0 || strncmp(kernel, "peak_", 5) != 0) continue;
        if (strcmp(v->kernel, kernel) != 0 || strcmp(v->isa, isa) != 0 || !runs) {
            continue;
        }
        for (int k = 0; k < n; ++k) tasks[k].peak = (agk_peak_f32_fn *)v->fn, tasks[k].seconds = seconds;
        return together(tasks, n);
    }
    return 0;
}

double ag_roofline_move(char *to, const char *from, size_t size, int repeats, int n)
{
    task tasks[MOST] = {{0}};
    const size_t share = size / (size_t)n / 512 * 512;
    for (int i = 0; i < n; ++i) {
        const size_t at = (size_t)i * share;
        tasks[i].from = from + at, tasks[i].to = to == NULL ? NULL : to + at, tasks[i].size = share;
        tasks[i].repeats = repeats, tasks[i].read = AGK_PICK(peak_read, agk_cpu_features());
    }
    return together(tasks, n);
}
