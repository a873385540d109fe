/* Calls of a library under guard: an assertion or an exception that would end the process ends the call instead.
 *
 * ggml_abort runs a callback before it calls abort(). In a thread that is inside a guarded call the callback throws.
 * Unwinding runs the destructors of the library's frames, so its locks are released. Exceptions of the library itself
 * (Vulkan's) are caught there as well. In a thread that the library started itself nothing catches an exception: see
 * lost.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "state.h"

bool (*ag_ggml_catch)(ag_ggml_call *call, void *argument, char *message, size_t size) = NULL;
void (*ag_ggml_throw)(const char *message) = NULL;

static _Thread_local int depth; /* of guarded calls that this thread is in */
/* called by a thread of a library that met an assertion and can neither go on nor return */
static void (*on_stranded)(const char *message);

static void on_abort(const char *message)
{
    if (depth > 0) ag_ggml_throw(message);
    on_stranded(message);
    for (;;) pause();
}

static void on_log(int level, const char *text, void *user)
{
    (void)user;
    if (level == 4) fprintf(stderr, "%s", text); /* GGML_LOG_LEVEL_ERROR; the rest is chatter of each start */
}

void ag_ggml_guard(const ag_ggml_library *library, void (*stranded)(const char *message))
{
    on_stranded = stranded;
    library->f.ggml_set_abort_callback(on_abort);
    if (library->f.ggml_log_set != NULL) library->f.ggml_log_set(on_log, NULL);
}

void ag_ggml_fail(const char *format, ...)
{
    char message[AG_GGML_MESSAGE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    ag_ggml_throw(message);
    abort(); /* it does not return */
}

bool ag_ggml_guarded(ag_ggml_device *device, ag_ggml_call *call, void *argument, char *message)
{
    if (device != NULL && device->remote) pthread_mutex_lock(&device->one);
    ++depth;
    bool fine = ag_ggml_catch(call, argument, message, AG_GGML_MESSAGE);
    --depth;
    if (device != NULL && device->remote) pthread_mutex_unlock(&device->one);
    return fine;
}

/* -- lost devices */

ag_error *ag_ggml_lost(ag_ggml_device *device)
{
    return ag_error_ref(atomic_load(&device->lost));
}

void ag_ggml_lose(ag_ggml_device *device, ag_error *error)
{
    ag_error *none = NULL, *mine = ag_error_ref(error);
    if (!atomic_compare_exchange_strong(&device->lost, &none, mine)) {
        ag_error_unref(mine);
        return;
    }
    void (*take_over)(ag_ggml_device *) = atomic_load(&device->take_over);
    if (take_over != NULL) take_over(device);
}

/* -- for threads of Python's */

typedef struct errand {
    atomic_int refs; /* one for the thread that asks, one for the thread that makes the call */
    ag_ggml_device *device;
    ag_ggml_call *call;
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool done, fine;
    char message[AG_GGML_MESSAGE];
    max_align_t argument[];
} errand;

static void errand_unref(errand *e)
{
    if (atomic_fetch_sub(&e->refs, 1) != 1) return;
    pthread_cond_destroy(&e->over);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

static void *run_errand(void *argument)
{
    errand *e = argument;
    bool fine = ag_ggml_guarded(e->device, e->call, e->argument, e->message);
    pthread_mutex_lock(&e->lock);
    e->done = true;
    e->fine = fine;
    pthread_cond_broadcast(&e->over);
    pthread_mutex_unlock(&e->lock);
    errand_unref(e);
    return NULL;
}

static ag_error *failure(ag_ggml_device *device, const char *operation, const char *message)
{
    ag_error *error = ag_error_new(AG_DEVICE_ERROR, device->name, operation, NULL, message);
    /* the only assertion that it can meet is that the connection stands */
    if (device->remote) ag_ggml_lose(device, error);
    return error;
}

/* If a connection is lost, the thread stays inside the library. So the asking thread checks every 50 ms. */
static ag_error *ask_apart(ag_ggml_device *device, const char *operation, ag_ggml_call *call, void *argument,
                           size_t size)
{
    ag_error *error = ag_ggml_lost(device);
    if (error != NULL) return error;
    errand *e = calloc(1, sizeof *e + size);
    pthread_t thread;
    if (e == NULL) return ag_error_new(AG_NO_MEMORY, device->name, operation, NULL, "no memory for a call");
    atomic_init(&e->refs, 2);
    e->device = device;
    e->call = call;
    memcpy(e->argument, argument, size);
    pthread_mutex_init(&e->lock, NULL);
    ag_cond_init(&e->over);
    if (!ag_thread_start(&thread, run_errand, e, true)) {
        atomic_store(&e->refs, 1);
        errand_unref(e);
        return ag_error_new(AG_NO_MEMORY, device->name, operation, NULL, "no thread could be started");
    }
    pthread_mutex_lock(&e->lock);
    while (!e->done && atomic_load(&device->lost) == NULL)
        ag_cond_wait_until(&e->over, &e->lock, ag_after(ag_now(), 50000000));
    bool done = e->done;
    pthread_mutex_unlock(&e->lock);
    if (!done) {
        error = ag_ggml_lost(device);
    } else if (!e->fine) {
        error = failure(device, operation, e->message);
    } else {
        memcpy(argument, e->argument, size);
    }
    errand_unref(e);
    return error;
}

ag_error *ag_ggml_ask(ag_ggml_device *device, const char *operation, ag_ggml_call *call, void *argument, size_t size)
{
    if (device->remote) return ask_apart(device, operation, call, argument, size);
    char message[AG_GGML_MESSAGE];
    if (ag_ggml_guarded(device, call, argument, message)) return NULL;
    return failure(device, operation, message);
}
