/* Libraries of ggml, for the binding: loading, devices, memory, plans, streams.
 *
 * A library is one build of libggml-base with its backends. All of its functions are looked up by name (functions.def).
 * Only three of its structs have a known layout: those that its interface passes by value or fills in. Every call goes
 * through ag_ggml_guarded: an assertion or an exception of the library ends the call, not the process.
 *
 * An assertion in a thread that the library started itself cannot be undone. That thread is stopped where it is, and
 * the devices whose calls can no longer end are lost (lost.c). */
#ifndef AG_GGML_LIBRARY_H
#define AG_GGML_LIBRARY_H

#include "runtime/runtime.h"

typedef struct ag_ggml_library ag_ggml_library;
typedef struct ag_ggml_device ag_ggml_device;
typedef struct ag_ggml_buffer ag_ggml_buffer;
typedef struct ag_ggml_plan ag_ggml_plan;

/* Runs `call(argument)` in C++, which catches exceptions; set by the binding. False: it threw; `message` says what. */
typedef void ag_ggml_call(void *argument);
extern bool (*ag_ggml_catch)(ag_ggml_call *call, void *argument, char *message, size_t size);
extern void (*ag_ggml_throw)(const char *message); /* does not return */

/* -- library.c, registry.c: loaded once for each file, for as long as the process lives */

/* NULL: `message` (512 bytes) says why. `base` and `registry`: files; `first` that were loaded stay so. */
ag_ggml_library *ag_ggml_open(const char *base, const char *registry, char *message);
const char *ag_ggml_version(const ag_ggml_library *library); /* "" where it tells none */
const char *ag_ggml_commit(const ag_ggml_library *library);
bool ag_ggml_has(const ag_ggml_library *library, const char *function);
/* the library's number for our type; -1: it has no such type */
int ag_ggml_type(const ag_ggml_library *library, int type);
/* Register the backend in a file; false: `message` says why. */
bool ag_ggml_load(ag_ggml_library *library, const char *file, char *message);
/* Register the devices of a server that speaks RPC. */
bool ag_ggml_add_server(ag_ggml_library *library, const char *endpoint, char *message);
size_t ag_ggml_family_count(ag_ggml_library *library); /* backends that are registered, with devices or without */
const char *ag_ggml_family(ag_ggml_library *library, size_t index);
size_t ag_ggml_device_count(ag_ggml_library *library);
ag_ggml_device *ag_ggml_device_get(ag_ggml_library *library, size_t index); /* lives as long as the process */

/* -- device.c */

typedef struct ag_ggml_facts {
    const char *name, *description, *family, *id;
    int type;
    bool async, host_buffer, from_host, events, host, remote;
    bool ahead;     /* its streams issue work before earlier work is done */
    bool with_igpu; /* numbers of device types count an integrated GPU, since devices have an id */
    size_t alignment, max_size;
} ag_ggml_facts;

size_t ag_ggml_extra_count(const ag_ggml_device *device); /* formats of weights besides the plain one */
const char *ag_ggml_extra_name(const ag_ggml_device *device, size_t index);
size_t ag_ggml_extra_alignment(const ag_ggml_device *device, size_t index);
bool ag_ggml_extra_is_split(const ag_ggml_device *device, size_t index);
ag_error *ag_ggml_extra_size(ag_ggml_device *device, size_t index, int type, const int64_t ne[4], size_t *size);
/* The index of the extra format whose rows are divided among the devices of this device's backend; (size_t)-1: there
 * is none. */
ag_error *ag_ggml_split(ag_ggml_device *device, const float *shares, size_t n, size_t *index);
/* waits of its streams that the device itself carried out, for tests */
uint64_t ag_ggml_follow_count(const ag_ggml_device *device);
ag_error *ag_ggml_facts_of(ag_ggml_device *device, ag_ggml_facts *facts);
ag_error *ag_ggml_memory(ag_ggml_device *device, size_t *free_bytes, size_t *total);
ag_error *ag_ggml_lost(ag_ggml_device *device); /* a reference, or NULL */
void ag_ggml_lose(ag_ggml_device *device, ag_error *error);

/* -- memory.c: buffers. Addresses of memory that is not the host's are made up by memory.c: unlike ggml's addresses
 * they differ between buffers. */

ag_error *ag_ggml_alloc(ag_ggml_device *device, size_t size, bool host, ag_ggml_buffer **buffer);
/* Memory of one of the device's own formats; a tensor is declared where it lies before it is written, whole. */
ag_error *ag_ggml_alloc_extra(ag_ggml_device *device, size_t size, size_t index, ag_ggml_buffer **buffer);
ag_error *ag_ggml_buffer_declare(ag_ggml_buffer *buffer, size_t offset, int type, const int64_t ne[4]);
ag_error *ag_ggml_wrap(ag_ggml_device *device, void *memory, size_t size, size_t largest, ag_ggml_buffer **buffer);
void ag_ggml_buffer_unref(ag_ggml_buffer *buffer);
uintptr_t ag_ggml_buffer_base(const ag_ggml_buffer *buffer);
size_t ag_ggml_buffer_size(const ag_ggml_buffer *buffer);
bool ag_ggml_buffer_is_host(const ag_ggml_buffer *buffer);

/* -- plan.c: a graph as a list of tensors, each behind those that it needs */

#define AG_GGML_SRC 10

typedef struct ag_ggml_node {
    int op;               /* agk_op: AGK_OP_none for a leaf */
    int type;             /* agk_type */
    int src[AG_GGML_SRC]; /* indices, -1: none */
    int view;             /* the tensor whose storage this one views, or -1 */
    bool keep;            /* its value is read after the run */
    bool param;
    bool in_arena; /* `address` counts from the arena of the run */
    int64_t ne[4], nb[4];
    int64_t offset;    /* of a view, from the start of its first source */
    uintptr_t address; /* 0 for what has no memory */
    int32_t params[16];
    char name[AG_NAME];
} ag_ggml_node;

ag_ggml_plan *ag_ggml_plan_new(ag_ggml_device *device);
void ag_ggml_plan_free(ag_ggml_plan *plan);
bool ag_ggml_plan_add(ag_ggml_plan *plan, const ag_ggml_node *node); /* false: no memory */
/* Whether the device runs the last node: NULL in `why`, or the reason why not. Asks the library. */
bool ag_ggml_plan_supports(ag_ggml_plan *plan, char *why);
bool ag_ggml_plan_offloads(ag_ggml_plan *plan);
size_t ag_ggml_plan_alloc_size(ag_ggml_plan *plan);          /* of the last node; 0: it cannot be built */
void ag_ggml_plan_attach(ag_plan *plan, ag_ggml_plan *made); /* takes it */

/* -- queue.c */

/* `ahead`: operations may be issued before those in front of them are done, where the library can. */
ag_stream *ag_ggml_stream(ag_ggml_device *device, const char *name, int n_threads, bool ahead, ag_error **error);
void ag_ggml_stop(uint64_t timeout_ns); /* at exit */

#endif
