/* Fork: how each lock and each state word of the native module is handled in the child, where only one thread is left.
 *
 * Not here: locks of Python (aggml/process/locks.py), what a user may do in the child (docs/async.md). */
#include "internal.h"

/* The child sees memory as it was at one moment, in the middle of whatever the parent's other threads did, and no fork
 * waits for them. So each word follows one of six rules. tests/process/test_fork_rules.py holds the table against the
 * sources; tests/native/runtime_fork.c forks with each lock held and in each state that somebody may wait for.
 *
 *   fresh   in_child() makes it anew. The child keeps some memory of what the parent had there, and nothing else.
 *   parent  part of an object that carries the parent's generation: a stream, a pool, the list of a notifier, a device
 *           of CUDA. Each function that would take a lock of one, wait for one or free it looks at the generation
 *           first, and refuses or does nothing.
 *   marked  the word tells of which process it is: what a thread of the parent left half done counts as not done.
 *   word    right at every moment: nobody waits for it, or it is written once. At worst a thread of the parent has
 *           counted a reference that it never gives back, and the child keeps that memory.
 *   gil     touched with the GIL only, and the thread that forks holds it. Without a GIL: touched by a thread that
 *           Python knows, with an ft_mutex that it gives back before it calls Python; a fork stops those threads
 *           outside of that.
 *   thread  of one thread, and the one that forks is in none of the functions that set it.
 *
 * | file                    | words                                                                  | rule   |
 * | ----------------------- | ---------------------------------------------------------------------- | ------ |
 * | runtime/fork.c          | ag_generation ag_locks                                                 | fresh  |
 * | runtime/fork.c          | once places                                                            | word   |
 * | runtime/error.c         | no_memory                                                              | word   |
 * | runtime/base.h          | refs seen user poison writes packed                                    | word   |
 * | runtime/runtime.h       | refs next abort started done error noted                               | word   |
 * | runtime/runtime.h       | thread wake cpu woke claimed strayed                                   | parent |
 * | runtime/packing.c       | packed_at                                                              | marked |
 * | runtime/packing.c       | refs writes in_use limit left                                          | word   |
 * | runtime/living.c        | streams pools                                                          | fresh  |
 * | runtime/stream.c        | resting                                                                | fresh  |
 * | runtime/stream_state.h  | refs n_threads lock closed lost submitted completed wanted abort_up_to | parent |
 * | runtime/stream_state.h  | over                                                                   | parent |
 * | runtime/stream_state.h  | call_cond keeps in_resting                                             | parent |
 * | runtime/pool_state.h    | base chunk_bytes chunks streams done word engaged limit status skipped | parent |
 * | runtime/pool_state.h    | taken                                                                  | parent |
 * | runtime/pool_state.h    | message_lock refs lock n_ready sleepers crowded_until spinners         | parent |
 * | runtime/pool_state.h    | active_runs runs_left stop least served floor                          | parent |
 * | runtime/pool_state.h    | paused n_threads width alive orphaned life owes n_ranges               | parent |
 * | runtime/pool_state.h    | ranges_done publishing speed weighed begins                            | parent |
 * | runtime/pool_sleep.c    | ag_on_idle                                                             | word   |
 * | runtime/pool.c          | my_pool                                                                | thread |
 * | runtime/stream_inline.c | inline_here                                                            | thread |
 * | runtime/stream_inline.c | work                                                                   | word   |
 * | runtime/timer.c         | timers lock changed thread                                             | fresh  |
 * | runtime/timer.c         | next_timer                                                             | word   |
 * | runtime/notifier.c      | open_notifiers users read_fd write_fd boxes mail spinners              | fresh  |
 * | runtime/notifier.c      | due_lock                                                               | parent |
 * | runtime/notifier.c      | refs signalled cpu                                                     | word   |
 * | runtime/courtesy.c      | loops fd users runs_on                                                 | fresh  |
 * | runtime/courtesy.c      | due n_loops yields                                                     | word   |
 * | runtime/courtesy.c      | works                                                                  | thread |
 * | runtime/unmap.c         | given_back serving                                                     | fresh  |
 * | runtime/unmap.c         | thread                                                                 | thread |
 * | runtime/roofline.c      | waiting threads                                                        | thread |
 * | cuda/queue.c            | all all_cond all_threads                                               | fresh  |
 * | cuda/queue.c            | thread                                                                 | thread |
 * | cuda/queue.c            | plan_calls                                                             | word   |
 * | cuda/chores.c           | last changed pending at_work stopping over                             | fresh  |
 * | cuda/chores.c           | thread                                                                 | thread |
 * | cuda/hands.c            | last posted n_hands stopping                                           | fresh  |
 * | cuda/hands.c            | thread                                                                 | thread |
 * | cuda/device.c           | all                                                                    | fresh  |
 * | cuda/state.h            | refs lock making made lost to_issue to_settle settled ready stop       | parent |
 * | cuda/state.h            | n_flights copier                                                       | parent |
 * | cuda/blas.c             | lock                                                                   | parent |
 * | cuda/nccl.c             | refs broken                                                            | parent |
 * | cuda/sum.c              | refs lock moved turn                                                   | parent |
 * | cuda/plan.c             | refs lock image                                                        | parent |
 * | ggml/queue.c            | all all_cond all_threads                                               | fresh  |
 * | ggml/queue.h            | refs lock to_issue ready stop                                          | parent |
 * | ggml/queue.c            | thread                                                                 | thread |
 * | ggml/memory.c           | all                                                                    | fresh  |
 * | ggml/memory.c           | next_base                                                              | word   |
 * | ggml/memory.c           | thread                                                                 | thread |
 * | ggml/state.h            | refs lock one lost take_over host_memory n_queues n_followed           | parent |
 * | ggml/guard.c            | refs lock over                                                         | parent |
 * | ggml/guard.c            | thread depth                                                           | thread |
 * | ggml/library.c          | all                                                                    | word   |
 * | runtime/cores.c         | once found                                                             | marked |
 * | runtime/cores.c         | pretended simulated                                                    | word   |
 * | runtime/topology.c      | once                                                                   | marked |
 * | runtime/topology.c      | pretended_cores pretended_banks                                        | word   |
 * | table/cpu_features.c    | cache                                                                  | word   |
 * | formats/quant_iq_grid.c | name##_once name##_levels name##_where name##_near                     | marked |
 * | binding/interpreter.cpp | taking_back                                                            | fresh  |
 * | binding/interpreter.cpp | ended last_thread                                                      | word   |
 * | binding/keep.cpp        | garbage any_garbage release_pending                                    | fresh  |
 * | binding/keep.cpp        | seen                                                                   | word   |
 * | binding/keep.cpp        | keepers unseen keepers_lock                                            | gil    |
 * | binding/objects.cpp     | none                                                                   | word   |
 * | binding/operations.cpp  | names base lock                                                        | gil    |
 * | binding/prepared.cpp    | dtype_name                                                             | gil    |
 * | binding/waits.cpp       | waits_lock                                                             | gil    |
 *
 * pthread_once (quant_iq_grid.c, cores.c, topology.c) marks as we do: glibc counts forks, and what another process
 * began is begun anew. */
atomic_uint ag_generation = 1;
pthread_mutex_t ag_locks[AG_LOCKS] = {
    PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
    PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
};
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic(void (*)(void)) places[AG_FORK_PLACES];

static void in_child(void)
{
    atomic_fetch_add(&ag_generation, 1);
    /* the thread that held it does not exist here */
    for (int i = 0; i < AG_LOCKS; ++i) pthread_mutex_init(&ag_locks[i], NULL);
    for (int i = 0; i < AG_FORK_PLACES; ++i) {
        void (*forget)(void) = atomic_load(&places[i]);
        if (forget != NULL) forget();
    }
}

static void install(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

void ag_runtime_init(void)
{
    pthread_once(&once, install);
}

void ag_at_fork(ag_fork_place place, void (*forget)(void))
{
    if (atomic_load_explicit(&places[place], memory_order_relaxed) == forget) return;
    atomic_store(&places[place], forget);
    ag_runtime_init();
}
