/* The properties of ggml's devices. Not here: their memory (memory.c), their streams (queue.c). */
#include <stdio.h>
#include <stdlib.h>

#include "state.h"

static pthread_mutex_t *const all_lock = &ag_locks[AG_LOCK_GGML];

/* struct ggml_backend_dev_props, in versions with device_id and in those before. The fields that ggml filled in tell
 * which. */
typedef struct caps {
    bool async, host_buffer, from_host, events;
} caps;
typedef struct new_props {
    const char *name, *description;
    size_t free, total;
    int type;
    const char *id;
    caps caps;
} new_props;
typedef struct old_props {
    const char *name, *description;
    size_t free, total;
    int type;
    caps caps;
} old_props;

/* The number of bytes that the library filled in tells which of the two it has. */
static void read_props(ag_ggml_device *device, ag_ggml_facts *facts)
{
    union {
        new_props with_id;
        old_props without;
        unsigned char bytes[512];
    } props;
    memset(&props, 0xAA, sizeof props);
    device->f->ggml_backend_dev_get_props(device->handle, &props);
    bool with_id = props.bytes[sizeof(old_props)] != 0xAA;
    const caps *found = with_id ? &props.with_id.caps : &props.without.caps;
    facts->id = with_id ? props.with_id.id : NULL;
    facts->with_igpu = with_id;
    facts->async = found->async;
    facts->host_buffer = found->host_buffer;
    facts->from_host = found->from_host;
    facts->events = found->events;
}

static void read_extras(ag_ggml_device *device)
{
    ag_ggml_handle **(*get)(ag_ggml_handle *device) = NULL;
    void *entry = ag_ggml_entry(device, "ggml_backend_dev_get_extra_bufts");
    if (entry == NULL) return;
    memcpy(&get, &entry, sizeof entry);
    ag_ggml_handle **found = get(device->handle); /* the last is NULL */
    while (found != NULL && *found != NULL && device->n_extras < AG_GGML_EXTRAS)
        device->extras[device->n_extras++].type = *found++;
}

size_t ag_ggml_extra_count(const ag_ggml_device *device)
{
    return device->n_extras;
}

const char *ag_ggml_extra_name(const ag_ggml_device *device, size_t index)
{
    return device->f->ggml_backend_buft_name(device->extras[index].type);
}

size_t ag_ggml_extra_alignment(const ag_ggml_device *device, size_t index)
{
    return device->f->ggml_backend_buft_get_alignment(device->extras[index].type);
}

bool ag_ggml_extra_is_split(const ag_ggml_device *device, size_t index)
{
    return device->extras[index].split;
}

typedef struct sizing {
    ag_ggml_device *device;
    ag_ggml_handle *type;
    int number;
    int64_t ne[4];
    size_t size;
} sizing;

static void ask_size(void *argument)
{
    sizing *s = argument;
    const ag_ggml_functions *f = s->device->f;
    ag_ggml_init_params params = {.size = f->ggml_tensor_overhead() + 256, .no_alloc = true};
    ag_ggml_context *context = f->ggml_init(params);
    if (s->number < 0 || context == NULL) ag_ggml_fail("the library has no such tensor");
    ag_ggml_tensor *tensor = f->ggml_new_tensor_4d(context, s->number, s->ne[0], s->ne[1], s->ne[2], s->ne[3]);
    s->size = f->ggml_backend_buft_get_alloc_size(s->type, tensor);
    f->ggml_free(context);
}

ag_error *ag_ggml_extra_size(ag_ggml_device *device, size_t index, int type, const int64_t ne[4], size_t *size)
{
    sizing s = {.device = device, .type = device->extras[index].type, .number = ag_ggml_type(device->library, type)};
    memcpy(s.ne, ne, sizeof s.ne);
    ag_error *error = ag_ggml_ask(device, "alloc_size", ask_size, &s, sizeof s);
    *size = s.size;
    return error;
}

#define SHARES 128 /* more than any backend has devices, because a backend reads one share for each of its devices */

typedef struct splitting {
    ag_ggml_device *device;
    ag_ggml_handle *type; /* NULL: it has no such entry */
    float shares[SHARES];
} splitting;

static void ask_split(void *argument)
{
    splitting *s = argument;
    const ag_ggml_functions *f = s->device->f;
    ag_ggml_handle *registry = f->ggml_backend_dev_backend_reg(s->device->handle);
    ag_ggml_handle *(*get)(int main_device, const float *shares) = NULL;
    void *entry = ag_ggml_entry(s->device, "ggml_backend_split_buffer_type");
    if (entry == NULL) return;
    memcpy(&get, &entry, sizeof entry);
    int main_device = 0;
    for (size_t k = 0; k < f->ggml_backend_reg_dev_count(registry); ++k) {
        if (f->ggml_backend_reg_dev_get(registry, k) == s->device->handle) main_device = (int)k;
    }
    s->type = get(main_device, s->shares);
}

ag_error *ag_ggml_split(ag_ggml_device *device, const float *shares, size_t n, size_t *index)
{
    splitting s = {.device = device};
    *index = (size_t)-1;
    for (size_t k = 0; k < n && k < SHARES; ++k) s.shares[k] = shares[k];
    ag_error *error = ag_ggml_ask(device, "split", ask_split, &s, sizeof s);
    if (error != NULL || s.type == NULL) return error;
    pthread_mutex_lock(&device->lock);
    size_t k = 0;
    while (k < device->n_extras && device->extras[k].type != s.type) ++k; /* the same shares give the same type */
    if (k == device->n_extras && k < AG_GGML_EXTRAS) device->extras[device->n_extras++] = (ag_ggml_extra){s.type, true};
    if (k < AG_GGML_EXTRAS) *index = k;
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

uint64_t ag_ggml_follow_count(const ag_ggml_device *device)
{
    return atomic_load(&device->n_followed);
}

static bool works_ahead(const ag_ggml_device *device)
{
    const ag_ggml_functions *f = device->f;
    return device->facts.async && device->facts.events && f->ggml_backend_tensor_set_async != NULL &&
           f->ggml_backend_tensor_get_async != NULL && f->ggml_backend_tensor_copy_async != NULL &&
           f->ggml_backend_event_new != NULL && f->ggml_backend_event_record != NULL &&
           f->ggml_backend_event_synchronize != NULL && f->ggml_backend_event_wait != NULL;
}

/* Without this, each call makes a new connection. In libraries without a dispatcher, buffers hold the connection. */
static void keep_connection(ag_ggml_device *device)
{
    device->keeper = device->f->ggml_backend_dev_init(device->handle, NULL);
    if (!device->async) (void)device->f->ggml_backend_buft_alloc_buffer(device->type, 64);
}

/* Guarded; NULL: no memory. */
static ag_ggml_device *make(ag_ggml_library *library, ag_ggml_handle *handle)
{
    ag_ggml_device *device = calloc(1, sizeof *device);
    if (device == NULL) return NULL;
    const ag_ggml_functions *f = &library->f;
    device->library = library;
    device->f = f;
    device->handle = handle;
    pthread_mutex_init(&device->lock, NULL);
    pthread_mutex_init(&device->one, NULL);
    snprintf(device->name, sizeof device->name, "ggml:%s", f->ggml_backend_dev_name(handle));
    ag_ggml_facts *facts = &device->facts;
    facts->name = device->name;
    facts->description = f->ggml_backend_dev_description(handle);
    facts->family = f->ggml_backend_reg_name(f->ggml_backend_dev_backend_reg(handle));
    facts->remote = device->remote = strncmp(facts->family, "RPC", 3) == 0;
    facts->type = f->ggml_backend_dev_type(handle);
    device->type = f->ggml_backend_dev_buffer_type(handle);
    facts->host = device->host = f->ggml_backend_buft_is_host(device->type);
    facts->alignment = f->ggml_backend_buft_get_alignment(device->type);
    facts->max_size = f->ggml_backend_buft_get_max_size(device->type);
    read_props(device, facts);
    read_extras(device);
    facts->ahead = device->async = works_ahead(device);
    if (device->remote) keep_connection(device);
    return device;
}

void ag_ggml_device_add(ag_ggml_library *library, ag_ggml_handle *handle)
{
    for (size_t j = 0; j < library->n_devices; ++j) {
        if (library->devices[j]->handle == handle) return;
    }
    ag_ggml_device **grown = realloc(library->devices, (library->n_devices + 1) * sizeof *grown);
    if (grown == NULL) return;
    library->devices = grown;
    ag_ggml_device *device = make(library, handle);
    if (device == NULL) return;
    pthread_mutex_lock(all_lock);
    library->devices[library->n_devices++] = device;
    pthread_mutex_unlock(all_lock);
}

size_t ag_ggml_device_count(ag_ggml_library *library)
{
    return library->n_devices;
}

ag_ggml_device *ag_ggml_device_get(ag_ggml_library *library, size_t index)
{
    return library->devices[index];
}

const ag_ggml_device *ag_ggml_cpu_of(ag_ggml_library *library)
{
    const ag_ggml_device *found = NULL;
    pthread_mutex_lock(all_lock);
    for (size_t k = 0; k < library->n_devices && found == NULL; ++k) {
        if (strcmp(library->devices[k]->facts.family, "CPU") == 0) found = library->devices[k];
    }
    pthread_mutex_unlock(all_lock);
    return found;
}

void ag_ggml_each_device(void (*visit)(ag_ggml_device *device, void *user), void *user)
{
    for (ag_ggml_library *library = ag_ggml_libraries(); library != NULL; library = library->next) {
        for (size_t k = 0; k < library->n_devices; ++k) visit(library->devices[k], user);
    }
}

ag_error *ag_ggml_facts_of(ag_ggml_device *device, ag_ggml_facts *facts)
{
    *facts = device->facts;
    return NULL;
}

void *ag_ggml_entry(ag_ggml_device *device, const char *name)
{
    return device->f->ggml_backend_reg_get_proc_address(device->f->ggml_backend_dev_backend_reg(device->handle), name);
}

typedef struct asking {
    ag_ggml_device *device;
    size_t free, total;
} asking;

static void ask_memory(void *argument)
{
    asking *a = argument;
    a->device->f->ggml_backend_dev_memory(a->device->handle, &a->free, &a->total);
}

ag_error *ag_ggml_memory(ag_ggml_device *device, size_t *free_bytes, size_t *total)
{
    asking a = {.device = device};
    ag_error *error = ag_ggml_ask(device, "memory", ask_memory, &a, sizeof a);
    *free_bytes = a.free;
    *total = a.total;
    return error;
}
