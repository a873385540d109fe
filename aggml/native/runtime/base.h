/* What the runtime is made with: time, forks, errors, the storages that they poison, notifiers of event loops.
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

uint64_t ag_now(void); /* ns of CLOCK_MONOTONIC, which is Python's perf_counter */

/* Raised in the child of every fork: objects that carry another generation belong to the parent. */
extern atomic_uint ag_generation;
void ag_runtime_init(void);             /* idempotent; installs the fork handler */
extern void (*ag_binding_forked)(void); /* set by the binding; called in the child */
extern void (*ag_devices_forked)(void); /* set by cuda/ with its first queue; likewise */
extern void (*ag_ggml_forked)(void);    /* the same of ggml/ */

/* The locks of the process; those of an object stand in it. Anew in the child of a fork (fork.c). */
typedef enum ag_lock {
    AG_LOCK_POISON,    /* the poison of all storages */
    AG_LOCK_NOTIFIERS, /* the list of those that are open */
    AG_LOCK_LIVING,    /* the lists of streams and pools */
    AG_LOCK_CUDA,      /* the list of queues */
    AG_LOCK_NCCL,      /* calls of NCCL */
    AG_LOCK_GGML,      /* the lists of libraries, buffers and queues */
    AG_LOCK_GARBAGE    /* the binding's: objects of Python that native threads let go of */
} ag_lock;
enum { AG_LOCKS = AG_LOCK_GARBAGE + 1 };
extern pthread_mutex_t ag_locks[AG_LOCKS];

/* -- the kernel's scheduler ------------------------------------------------------------------------------------ */

void ag_sched_loop(void);   /* this thread runs an event loop: a short slice, so that it runs as soon as it wakes */
void ag_sched_worker(void); /* this thread computes: a long slice, a little less weight */

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

/* A failure, shared by the operation that failed and by all that read what it would have written. */
struct ag_error {
    atomic_int refs;
    ag_code code;
    atomic_bool seen; /* somebody got it raised, so that synchronize() need not tell it again */
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

/* -- storages: what a failure poisons ------------------------------------------------------------------------- */

typedef enum ag_backing {
    AG_IN_MEMORY,   /* pages of this process */
    AG_MAY_BE_FILE, /* a mapped file, or memory of others; the kernel knows which pages are in memory (mincore) */
    AG_UNTOLD,      /* a mapped file of somebody else's: the kernel calls all of its pages present */
} ag_backing;

struct ag_storage {
    agk_weights weights; /* first: how a lowering asks for packed ones */
    atomic_int refs;
    _Atomic(ag_error *) poison;
    _Atomic(uint64_t) writes;     /* how often something wrote it: what was packed before is stale */
    _Atomic(agk_packed *) packed; /* a list, owned */
    char name[AG_NAME];
    uintptr_t first, end; /* where it lies, if that may be a file: reading a page that is not in memory takes ms */
    ag_backing backing;
};

ag_storage *ag_storage_new(const char *name);
void ag_storage_lies(ag_storage *storage, uintptr_t first, size_t size, ag_backing backing); /* before it is used */
bool ag_present(ag_backing backing, uintptr_t first, size_t size); /* reading there waits for no disk */
ag_storage *ag_storage_ref(ag_storage *storage);
void ag_storage_unref(ag_storage *storage);
void ag_storage_written(ag_storage *storage);
ag_error *ag_storage_poison(ag_storage *storage);                 /* a reference, or NULL */
void ag_storage_set_poison(ag_storage *storage, ag_error *error); /* NULL cures */

/* -- notifier: wakes an event loop ---------------------------------------------------------------------------- */

ag_notifier *ag_notifier_new(void); /* NULL: no file descriptors left */
ag_notifier *ag_notifier_ref(ag_notifier *notifier);
void ag_notifier_unref(ag_notifier *notifier);
int ag_notifier_fd(const ag_notifier *notifier); /* readable once signalled; -1 when closed */
void ag_notifier_signal(ag_notifier *notifier);  /* from any thread; one write until drained */
void ag_notifier_drain(ag_notifier *notifier);
void ag_notifier_close(ag_notifier *notifier);

#endif
