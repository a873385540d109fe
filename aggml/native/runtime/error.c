/* Errors and the storages that they poison: reference-counted objects, shared between streams and the binding.
 *
 * Not here: which storages are poisoned and when (stream.c), how an error becomes an exception (binding/). */
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"
#include "packing.h"

void (*ag_drop_user)(void *user) = NULL;

/* Taking a reference to a poison and replacing the poison exclude each other. This lock is only taken for failures
 * and when a poison is cleared. */
static pthread_mutex_t *const poison_lock = &ag_locks[AG_LOCK_POISON];

/* Used if there is no memory for an error, because a failure must never look like success. */
static ag_error no_memory = {.refs = 1, .code = AG_NO_MEMORY, .text = "no memory to tell what failed"};

ag_error *ag_error_new(ag_code code, const char *device, const char *operation, const char *tensor, const char *text)
{
    ag_error *error = calloc(1, sizeof *error);
    if (error == NULL) return ag_error_ref(&no_memory);
    atomic_init(&error->refs, 1);
    error->code = code;
    snprintf(error->device, sizeof error->device, "%s", device ? device : "");
    snprintf(error->operation, sizeof error->operation, "%s", operation ? operation : "");
    snprintf(error->tensor, sizeof error->tensor, "%s", tensor ? tensor : "");
    snprintf(error->text, sizeof error->text, "%s", text ? text : "");
    return error;
}

ag_error *ag_error_ref(ag_error *error)
{
    if (error != NULL) atomic_fetch_add_explicit(&error->refs, 1, memory_order_relaxed);
    return error;
}

void ag_error_unref(ag_error *error)
{
    if (error == NULL || atomic_fetch_sub_explicit(&error->refs, 1, memory_order_acq_rel) != 1) return;
    void *user = atomic_load(&error->user);
    if (user != NULL && ag_drop_user != NULL) ag_drop_user(user);
    free(error);
}

ag_storage *ag_storage_new(const char *name)
{
    ag_storage *storage = calloc(1, sizeof *storage);
    if (storage == NULL) return NULL;
    storage->weights.acquire = ag_packed_acquire;
    atomic_init(&storage->refs, 1);
    snprintf(storage->name, sizeof storage->name, "%s", name ? name : "");
    return storage;
}

void ag_storage_lies(ag_storage *storage, uintptr_t first, size_t size, ag_backing backing, bool is_file)
{
    storage->first = first;
    storage->end = first + size;
    storage->backing = backing;
    storage->is_file = is_file;
}

ag_storage *ag_storage_ref(ag_storage *storage)
{
    atomic_fetch_add_explicit(&storage->refs, 1, memory_order_relaxed);
    return storage;
}

void ag_storage_unref(ag_storage *storage)
{
    if (storage == NULL || atomic_fetch_sub_explicit(&storage->refs, 1, memory_order_acq_rel) != 1) return;
    ag_error_unref(atomic_load(&storage->poison));
    ag_packed_drop(atomic_load(&storage->packed));
    free(storage);
}

void ag_storage_written(ag_storage *storage)
{
    atomic_fetch_add_explicit(&storage->writes, 1, memory_order_release);
}

ag_error *ag_storage_poison(ag_storage *storage)
{
    if (atomic_load_explicit(&storage->poison, memory_order_acquire) == NULL) return NULL;
    pthread_mutex_lock(poison_lock);
    ag_error *error = ag_error_ref(atomic_load(&storage->poison));
    pthread_mutex_unlock(poison_lock);
    return error;
}

void ag_storage_set_poison(ag_storage *storage, ag_error *error)
{
    if (error == NULL && atomic_load_explicit(&storage->poison, memory_order_acquire) == NULL) return;
    pthread_mutex_lock(poison_lock);
    ag_error *old = atomic_exchange(&storage->poison, ag_error_ref(error));
    pthread_mutex_unlock(poison_lock);
    ag_error_unref(old);
}
