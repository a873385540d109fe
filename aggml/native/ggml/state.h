/* Shared by the files of ggml/: functions of a library, devices, buffers, queues. */
#ifndef AG_GGML_STATE_H
#define AG_GGML_STATE_H

#include "library.h"
#include <string.h>

#include "runtime/internal.h"
#include "table/ops.h"
#include "table/types.h"

typedef struct ag_ggml_tensor ag_ggml_tensor;
typedef struct ag_ggml_context ag_ggml_context;
typedef struct ag_ggml_graph ag_ggml_graph;
typedef struct ag_ggml_handle ag_ggml_handle; /* a buffer, its type, a backend, a device, a registry of ggml */
typedef struct ag_ggml_queue ag_ggml_queue;

/* struct ggml_init_params: passed by value, the same in all versions that are known. */
typedef struct ag_ggml_init_params {
    size_t size;
    void *memory;
    bool no_alloc;
} ag_ggml_init_params;
typedef void ag_ggml_abort_fn(const char *message);
typedef void ag_ggml_log_fn(int level, const char *text, void *user);

#define T ag_ggml_tensor *
#define C ag_ggml_context *
#define G ag_ggml_graph *
#define H ag_ggml_handle *
typedef struct ag_ggml_functions {
#define AG_GGML(returns, name, parameters) returns(*name) parameters;
#include "functions.def"
} ag_ggml_functions;
#undef T
#undef C
#undef G
#undef H

#define AG_GGML_MESSAGE 512
#define AG_GGML_TYPES 128

struct ag_ggml_library {
    ag_ggml_functions f;
    void *base, *registry; /* handles of dlopen */
    char path[512];
    int types[AG_GGML_TYPES];              /* by our number; -1: none */
    _Atomic(ag_ggml_handle *) host_memory; /* a buffer that stands for all of it; NULL: none was needed yet */
    ag_ggml_device **devices;
    size_t n_devices;
    ag_ggml_library *next;
};

#define AG_GGML_EXTRAS 32

/* A buffer type that the device has in addition to the plain one. */
typedef struct ag_ggml_extra {
    ag_ggml_handle *type;
    bool split; /* rows divided among devices, which can be read back; else a format of weights, such as CPU_REPACK */
} ag_ggml_extra;

/* A tensor in memory of such a type. The library may keep data of its own with the tensor, so there is only one. */
typedef struct ag_ggml_declared {
    size_t offset;
    int type; /* the library's */
    int64_t ne[4];
    ag_ggml_context *context;
    ag_ggml_tensor *tensor;
} ag_ggml_declared;

struct ag_ggml_device {
    ag_ggml_library *library;
    const ag_ggml_functions *f;
    ag_ggml_handle *handle, *type, *keeper; /* keeper: a backend that holds the connection of a remote device */
    ag_ggml_extra extras[AG_GGML_EXTRAS];
    size_t n_extras;
    char name[AG_NAME];
    bool remote, host;
    bool async; /* it takes work asynchronously, and its events tell what has ended */
    ag_ggml_facts facts;
    pthread_mutex_t lock; /* of queues; held for moments */
    pthread_mutex_t one;  /* held during a call of a backend that is not made for several threads */
    _Atomic(ag_error *) lost;
    /* Told when the device is lost, once; NULL: it has no queues. */
    _Atomic(void (*)(ag_ggml_device *)) take_over;
    ag_ggml_queue *queues; /* that have a stream */
    atomic_int n_queues;
    struct ag_ggml_event *events;    /* guarded by the lock: events that nothing waits for */
    atomic_uint_fast64_t n_followed; /* waits that the device itself carried out */
};

struct ag_ggml_buffer {
    atomic_int refs;
    unsigned generation; /* of the process that took it */
    ag_ggml_device *device;
    ag_ggml_handle *handle;
    uintptr_t base; /* the address by which the other rooms know it */
    uintptr_t real; /* the address by which ggml knows it */
    size_t size;
    bool host;
    bool extra; /* one of the device's extras: a tensor is written whole */
    bool split; /* and read back whole; else it is not read back */
    ag_ggml_declared *declared;
    size_t n_declared;
    ag_ggml_buffer *next, **link; /* in the list of all */
};

/* -- guard.c */

/* Runs `call`; false: it ended by an assertion or an exception, `message` says which. */
bool ag_ggml_guarded(ag_ggml_device *device, ag_ggml_call *call, void *argument, char *message);
/* The same for a thread of Python. For a remote device the call runs on a thread that may be left behind. */
ag_error *ag_ggml_ask(ag_ggml_device *device, const char *operation, ag_ggml_call *call, void *argument, size_t size);
/* Makes assertions of the library end the call, or have `stranded` called, instead of ending the process. */
void ag_ggml_guard(const ag_ggml_library *library, void (*stranded)(const char *message));

/* -- library.c */

ag_ggml_library *ag_ggml_library_open(const char *base, const char *registry, char *message);
ag_ggml_library *ag_ggml_libraries(void);                        /* the first of all; they stay */
bool ag_ggml_uses(const ag_ggml_library *library, void *handle); /* whether a file that is loaded uses this library */

/* -- device.c */

void ag_ggml_device_add(ag_ggml_library *library, ag_ggml_handle *handle); /* guarded; one that is there stays */
const ag_ggml_device *ag_ggml_cpu_of(ag_ggml_library *library);            /* its CPU backend's; NULL: none is loaded */
void ag_ggml_each_device(void (*visit)(ag_ggml_device *device, void *user), void *user);
void *ag_ggml_entry(ag_ggml_device *device, const char *name); /* beyond the interface; NULL: there is none */

/* -- memory.c */

ag_ggml_buffer *ag_ggml_buffer_at(uintptr_t address, size_t size); /* a reference; NULL: none of ours */
/* Whether it lies in such memory; in a split one, if those count. */
bool ag_ggml_is_extra(uintptr_t address, bool split);
bool ag_ggml_declared_at(ag_ggml_buffer *buffer, size_t offset, ag_ggml_declared *found);
ag_ggml_buffer *ag_ggml_buffer_ref(ag_ggml_buffer *buffer);

/* -- transfer.c: by the thread of a queue, guarded */

typedef struct ag_ggml_side {
    ag_ggml_buffer *buffer; /* a reference; NULL: host memory, whoever owns it */
    uint8_t *first;
} ag_ggml_side;

typedef struct ag_ggml_transfer {
    ag_copy c;
    ag_ggml_side to, from;
    ag_ggml_handle *backend; /* that takes it asynchronously */
    bool straight;           /* it may */
} ag_ggml_transfer;

/* How a device that works asynchronously treats a copy (NULL: it does not); not guarded. */
void ag_ggml_transfer_of(ag_ggml_transfer *transfer, const ag_ggml_device *device, const ag_copy *copy);
/* Without a backend everything has ended on return. */
void ag_ggml_transfer_run(ag_ggml_transfer *transfer, ag_ggml_handle *backend);
void ag_ggml_fill(ag_ggml_device *device, uint8_t *dst, int value, size_t size);

/* -- builders.c */

typedef struct ag_ggml_site {
    const ag_ggml_library *library;
    const ag_ggml_functions *f;
    ag_ggml_context *c;
    const ag_ggml_node *node;
    ag_ggml_tensor *src[AG_GGML_SRC];
    const ag_ggml_node *operands[AG_GGML_SRC]; /* the same */
    int type;                                  /* the library's */
    bool converts;                             /* the node is of another type than its first operand */
} ag_ggml_site;

/* Throws if the library has nothing that makes such a node. */
ag_ggml_tensor *ag_ggml_build(const ag_ggml_site *site);

/* -- wrong.c: the reason why the library would make a wrong node; NULL: no reason is known */

const char *ag_ggml_known_fault(const ag_ggml_site *site);

/* -- build.c: a plan as a graph of ggml */

typedef struct ag_ggml_built {
    atomic_int refs; /* the plan, runs that have not ended */
    const ag_ggml_functions *f;
    ag_ggml_context *context;
    ag_ggml_graph *graph;
    ag_ggml_tensor **tensors, *last;
    ag_ggml_buffer **buffers;
    size_t n_buffers;
    bool whole; /* it was built to the end */
} ag_ggml_built;

struct ag_ggml_plan {
    ag_ggml_device *device;
    ag_ggml_node *nodes;
    size_t n, cap;
    pthread_mutex_t lock; /* of `built`: several streams may run one plan */
    uintptr_t arena;      /* that it was built for */
    ag_ggml_built *built; /* NULL: not yet */
};

ag_ggml_built *ag_ggml_built_new(const ag_ggml_plan *plan); /* NULL: no memory */
/* In the guarded part: throws what is wrong. With `placed` tensors get their memory, and there is a graph. */
void ag_ggml_build_all(ag_ggml_plan *plan, uintptr_t arena, bool placed, ag_ggml_built *built);
void ag_ggml_built_unref(ag_ggml_built *built);
void ag_ggml_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn)); /* by throwing */

/* -- plan.c */

void ag_ggml_plan_drop(void *device); /* by which a plan is known to be one of these */

typedef struct ag_ggml_run {
    ag_ggml_plan *plan;
    ag_ggml_handle *backend;
    uintptr_t arena;
    bool ahead; /* the call returns before the graph has ended, and before anybody tells that it has */
} ag_ggml_run;

/* Guarded, by the thread of a queue that holds the plan's lock; throws, or returns ggml's status. `built`: a reference
 * to what runs. */
int ag_ggml_plan_run(const ag_ggml_run *run, ag_ggml_built **built);
/* Asks a server for a byte of the result, which it answers behind the graph; what is issued later comes behind that. */
void ag_ggml_plan_tail(ag_ggml_handle *backend, const ag_ggml_built *built, uint8_t *byte);

#endif
