/* Devices of ggml: what they are. Not here: their memory (memory.c), their streams (queue.c). */
#include <stdio.h>
#include <stdlib.h>

#include "lost.h"
#include "state.h"

/* struct ggml_backend_dev_props of versions since device_id, and of those before: read by what is where. */
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

/* Which of the two the library has is seen by how many bytes it filled in. */
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
        device->extras[device->n_extras++] = *found++;
}

size_t ag_ggml_extra_count(const ag_ggml_device *device)
{
    return device->n_extras;
}

const char *ag_ggml_extra_name(const ag_ggml_device *device, size_t index)
{
    return device->f->ggml_backend_buft_name(device->extras[index]);
}

size_t ag_ggml_extra_alignment(const ag_ggml_device *device, size_t index)
{
    return device->f->ggml_backend_buft_get_alignment(device->extras[index]);
}

ag_ggml_device *ag_ggml_device_new(ag_ggml_library *library, ag_ggml_handle *handle)
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
    if (device->remote) device->keeper = f->ggml_backend_dev_init(handle, NULL); /* else each call connects anew */
    return device;
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
