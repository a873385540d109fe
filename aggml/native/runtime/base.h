/* The base of the runtime: time, forks, errors, the storages that errors poison, notifiers of event loops.
 *
 * Not here: plans, streams and threads (runtime.h). No Python. */
#ifndef AG_BASE_H
#define AG_BASE_H

#include <pthread.h>
#ifndef AG_RUNTIME_CPP /* binding/common.h maps C11 atomics to std::atomic, whose layout is the same */
#include <stdatomic.h>
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lower/weights.h"
#include "lower/node.h"

#define AG_NAME 64

typedef struct ag_error ag_error;
typedef struct ag_storage ag_storage;
typedef struct ag_notifier ag_notifier;

/* -- time and fork -------------------------------------------------------------------------------------------- */

uint64_t ag_now(void); /* ns of CLOCK_MONOTONIC, which is Python's perf_counter (clock.c) */

/* Incremented in the child of every fork: objects that carry another generation belong to the parent. */
extern atomic_uint ag_generation;
void ag_runtime_init(void); /* idempotent; installs the fork handler */
/* What the child of a fork has to forget, in the order in which it does. */
typedef enum ag_fork_place {
    AG_FORK_COURTESY,
    AG_FORK_NOTIFIERS,
    AG_FORK_TIMERS,
    AG_FORK_LIVING,
    AG_FORK_REST,
    AG_FORK_UNMAP,
    AG_FORK_CUDA_DEVICES,
    AG_FORK_CUDA_CHORES,
    AG_FORK_CUDA_HANDS,
    AG_FORK_CUDA_QUEUES,
    AG_FORK_GGML_BUFFERS,
    AG_FORK_GGML_QUEUES,
    AG_FORK_BINDING
} ag_fork_place;
enum { AG_FORK_PLACES = AG_FORK_BINDING + 1 };
/* From here on the child of a fork calls `forget`. Whoever keeps state of the process says so before there is any. */
void ag_at_fork(ag_fork_place place, void (*forget)(void));

/* The locks of the process; the locks of an object are members of the object. They are initialised anew in the child
 * of a fork (fork.c). */
typedef enum ag_lock {
    AG_LOCK_POISON,    /* the poison of all storages */
    AG_LOCK_NOTIFIERS, /* the list of open notifiers */
    AG_LOCK_LIVING,    /* the lists of streams and pools */
    AG_LOCK_CUDA,      /* the list of queues */
    AG_LOCK_NCCL,      /* calls of NCCL */
    AG_LOCK_GGML,      /* the lists of libraries, buffers and queues */
    AG_LOCK_UNMAP,     /* the list of mappings that are given back */
    AG_LOCK_GARBAGE    /* the binding's: Python objects whose references native threads have given up */
} ag_lock;
enum { AG_LOCKS = AG_LOCK_GARBAGE + 1 };
extern pthread_mutex_t ag_locks[AG_LOCKS];

/* -- the kernel's scheduler ------------------------------------------------------------------------------------ */

/* this thread runs an event loop: it gets a short slice, so that it runs as soon as it wakes */
void ag_sched_loop(void);
void ag_sched_worker(void); /* this thread computes: it gets a long slice and a little less weight */

/* -- mappings -------------------------------------------------------------------------------------------------- */

/* gives a mapping back; large ones by a thread, after this returns (unmap.c) */
void ag_unmap(void *data, size_t size);
bool ag_unmapped(void); /* waits until all mappings are given back; false: there was nothing to wait for */

/* -- errors --------------------------------------------------------------------------------------------------- */

typedef enum ag_code {
    AG_DEVICE_ERROR = 1,
    AG_OUT_OF_BOUNDS,
    AG_INVALID_ARGUMENT,
    AG_UNSUPPORTED,
    AG_NO_MEMORY,
    AG_ABORTED,
    AG_FOREIGN /* `user` holds what the caller supplied (a Python exception) */
} ag_code;

/* A failure, shared by the operation that failed and by all operations that read its result. */
struct ag_error {
    atomic_int refs;
    ag_code code;
    atomic_bool seen; /* the error was raised somewhere, so synchronize() need not report it again */
    char device[AG_NAME];
    char operation[32];
    char tensor[AG_NAME];
    char text[256];
    _Atomic(void *) user; /* the binding's exception object; dropped through ag_drop_user */
};

extern void (*ag_drop_user)(void *user); /* set by the binding; may be called by any thread */
ag_error *ag_error_new(ag_code code, const char *device, const char *operation, const char *tensor, const char *text);
ag_error *ag_error_ref(ag_error *error);
void ag_error_unref(ag_error *error);

/* -- storages: failures poison them --------------------------------------------------------------------------- */

typedef enum ag_backing {
    AG_IN_MEMORY, /* pages of this process */
    /* a mapped file, or foreign memory; the kernel knows which of its pages are in memory (mincore) */
    AG_MAY_BE_FILE,
    AG_UNTOLD, /* a file that somebody else mapped: the kernel reports all of its pages as present */
} ag_backing;

struct ag_storage {
    agk_weights weights; /* the first member; a lowering asks for packed weights through it */
    atomic_int refs;
    _Atomic(ag_error *) poison;
    _Atomic(uint64_t) writes;     /* counts the writes; what was packed before the last one is stale */
    _Atomic(agk_packed *) packed; /* a list, owned */
    char name[AG_NAME];
    uintptr_t first, end; /* the address range, if it may be a file: reading a page that is not in memory takes ms */
    ag_backing backing;
    /* It lies in a private mapping of a file, to which nobody writes but operations on it. So pages that nobody needs
     * any more can be given back: who reads them again gets them from the file. */
    bool is_file;
};

ag_storage *ag_storage_new(const char *name);
/* called before the storage is used */
void ag_storage_lies(ag_storage *storage, uintptr_t first, size_t size, ag_backing backing, bool is_file);
bool ag_present(ag_backing backing, uintptr_t first, size_t size); /* true: reading there does not wait for a disk */
ag_storage *ag_storage_ref(ag_storage *storage);
void ag_storage_unref(ag_storage *storage);
void ag_storage_written(ag_storage *storage);
ag_error *ag_storage_poison(ag_storage *storage);                 /* a reference, or NULL */
void ag_storage_set_poison(ag_storage *storage, ag_error *error); /* NULL clears the poison */

/* -- notifier: wakes an event loop ---------------------------------------------------------------------------- */

ag_notifier *ag_notifier_new(void); /* NULL: no file descriptors left */
ag_notifier *ag_notifier_ref(ag_notifier *notifier);
void ag_notifier_unref(ag_notifier *notifier);
int ag_notifier_fd(const ag_notifier *notifier); /* readable once signalled; -1 when closed */
/* from any thread; writes once, then not again until the loop has drained it */
void ag_notifier_signal(ag_notifier *notifier);
void ag_notifier_drain(ag_notifier *notifier);
void ag_notifier_close(ag_notifier *notifier);

#endif
