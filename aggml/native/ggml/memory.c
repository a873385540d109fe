/* Buffers of ggml, and the addresses by which the other rooms know them.
 *
 * ggml's addresses of device memory are not unique: all buffers of Vulkan begin at the same address, and two servers
 * may give the same one. So each buffer that is not in host memory gets a range of its own, where no host address
 * lies. Not here: copies (transfer.c). */
#include <stdlib.h>

#include "state.h"

#define FIRST ((uintptr_t)1 << 56) /* beyond the address range of a processor */
#define APART ((uintptr_t)1 << 20) /* a range begins at a multiple of this, with a gap behind it */

static pthread_mutex_t *const all_lock = &ag_locks[AG_LOCK_GGML];
static ag_ggml_buffer *all;
static uintptr_t next_base = FIRST;

typedef struct request {
    ag_ggml_device *device;
    ag_ggml_buffer *buffer;
    size_t size, largest;
    void *memory;
    bool host;
    const ag_ggml_extra *extra;
} request;

static void take(void *argument)
{
    request *r = argument;
    const ag_ggml_functions *f = r->device->f;
    ag_ggml_buffer *buffer = r->buffer;
    if (r->memory != NULL) {
        buffer->handle = f->ggml_backend_dev_buffer_from_host_ptr(r->device->handle, r->memory, r->size, r->largest);
    } else {
        ag_ggml_handle *type = r->extra != NULL ? r->extra->type
                               : r->host        ? f->ggml_backend_dev_host_buffer_type(r->device->handle)
                                                : r->device->type;
        if (type == NULL) ag_ggml_fail("the device has no memory of that kind");
        buffer->handle = f->ggml_backend_buft_alloc_buffer(type, r->size);
    }
    if (buffer->handle == NULL) return;
    buffer->real = (uintptr_t)f->ggml_backend_buffer_get_base(buffer->handle);
    buffer->size = r->size;
    /* Cleared, so that it is the same in every run, like all memory here: a driver may leave values there that no
     * mask hides, such as NaN. */
    if (r->memory == NULL) f->ggml_backend_buffer_clear(buffer->handle, 0);
    buffer->extra = r->extra != NULL;
    buffer->split = buffer->extra && r->extra->split;
    buffer->host = !buffer->extra && (r->host || r->device->host);
}

static void forget(void) /* in the child of a fork: the memory is the parent's */
{
    all = NULL;
}

static void enlist(ag_ggml_buffer *buffer)
{
    ag_at_fork(AG_FORK_GGML_BUFFERS, forget);
    pthread_mutex_lock(all_lock);
    if (buffer->host) {
        buffer->base = buffer->real;
    } else {
        buffer->base = next_base;
        next_base += (buffer->size / APART + 2) * APART;
    }
    buffer->next = all;
    buffer->link = &all;
    if (all != NULL) all->link = &buffer->next;
    all = buffer;
    pthread_mutex_unlock(all_lock);
}

static ag_error *get(ag_ggml_device *device, request r, ag_ggml_buffer **out)
{
    *out = NULL;
    r.device = device;
    r.buffer = calloc(1, sizeof *r.buffer);
    if (r.buffer == NULL) return ag_error_new(AG_NO_MEMORY, device->name, "alloc", NULL, "no memory");
    atomic_init(&r.buffer->refs, 1);
    r.buffer->device = device;
    r.buffer->generation = atomic_load(&ag_generation);
    ag_error *error = ag_ggml_ask(device, "alloc", take, &r, sizeof r);
    if (error != NULL && device->remote) return error; /* the stuck thread may still write to the buffer */
    if (error == NULL && r.buffer->handle == NULL)
        error = ag_error_new(AG_NO_MEMORY, device->name, "alloc", NULL, "the device does not have so many bytes left");
    if (error != NULL) {
        free(r.buffer);
        return error;
    }
    enlist(r.buffer);
    *out = r.buffer;
    return NULL;
}

ag_error *ag_ggml_alloc(ag_ggml_device *device, size_t size, bool host, ag_ggml_buffer **buffer)
{
    return get(device, (request){.size = size, .host = host}, buffer);
}

ag_error *ag_ggml_alloc_extra(ag_ggml_device *device, size_t size, size_t index, ag_ggml_buffer **buffer)
{
    return get(device, (request){.size = size, .extra = &device->extras[index]}, buffer);
}

typedef struct declaring {
    ag_ggml_buffer *buffer;
    ag_ggml_declared declared;
} declaring;

static void declare(void *argument)
{
    declaring *d = argument;
    const ag_ggml_functions *f = d->buffer->device->f;
    const int64_t *ne = d->declared.ne;
    ag_ggml_init_params params = {.size = f->ggml_tensor_overhead() + 256, .no_alloc = true};
    if (d->declared.type < 0) ag_ggml_fail("this library has no such type");
    d->declared.context = f->ggml_init(params);
    if (d->declared.context == NULL) ag_ggml_fail("no memory for a tensor");
    d->declared.tensor = f->ggml_new_tensor_4d(d->declared.context, d->declared.type, ne[0], ne[1], ne[2], ne[3]);
    uintptr_t address = d->buffer->real + d->declared.offset;
    if (f->ggml_backend_tensor_alloc(d->buffer->handle, d->declared.tensor, (void *)address) != 0)
        ag_ggml_fail("the tensor cannot lie there");
}

ag_error *ag_ggml_buffer_declare(ag_ggml_buffer *buffer, size_t offset, int type, const int64_t ne[4])
{
    declaring d = {buffer, {.offset = offset, .type = ag_ggml_type(buffer->device->library, type)}};
    memcpy(d.declared.ne, ne, sizeof d.declared.ne);
    ag_ggml_declared before;
    if (ag_ggml_declared_at(buffer, offset, &before) && before.type == d.declared.type &&
        memcmp(before.ne, ne, sizeof before.ne) == 0)
        return NULL;
    ag_error *error = ag_ggml_ask(buffer->device, "alloc", declare, &d, sizeof d);
    if (error != NULL) return error;
    pthread_mutex_lock(all_lock);
    ag_ggml_declared *grown = realloc(buffer->declared, (buffer->n_declared + 1) * sizeof *grown);
    if (grown != NULL) { /* the latest tensor at a place counts; one that a graph still reads stays */
        buffer->declared = grown;
        grown[buffer->n_declared++] = d.declared;
    }
    pthread_mutex_unlock(all_lock);
    return grown != NULL ? NULL : ag_error_new(AG_NO_MEMORY, buffer->device->name, "alloc", NULL, "no memory");
}

bool ag_ggml_declared_at(ag_ggml_buffer *buffer, size_t offset, ag_ggml_declared *found)
{
    bool there = false;
    pthread_mutex_lock(all_lock);
    for (size_t k = buffer->n_declared; k > 0 && !there; --k) {
        there = buffer->declared[k - 1].offset == offset;
        if (there) *found = buffer->declared[k - 1];
    }
    pthread_mutex_unlock(all_lock);
    return there;
}

bool ag_ggml_is_extra(uintptr_t address, bool split)
{
    ag_ggml_buffer *buffer = ag_ggml_buffer_at(address, 0);
    bool extra = buffer != NULL && buffer->extra && (split || !buffer->split);
    ag_ggml_buffer_unref(buffer);
    return extra;
}

ag_error *ag_ggml_wrap(ag_ggml_device *device, void *memory, size_t size, size_t largest, ag_ggml_buffer **buffer)
{
    return get(device, (request){.size = size, .largest = largest, .memory = memory}, buffer);
}

static void give_back(void *argument)
{
    ag_ggml_buffer *buffer = argument;
    buffer->device->f->ggml_backend_buffer_free(buffer->handle);
    for (size_t k = 0; k < buffer->n_declared; ++k) buffer->device->f->ggml_free(buffer->declared[k].context);
}

static void *give_back_apart(void *argument)
{
    ag_ggml_buffer *buffer = argument;
    char message[AG_GGML_MESSAGE];
    if (!ag_ggml_guarded(buffer->device, give_back, buffer, message)) {
        ag_error *error = ag_error_new(AG_DEVICE_ERROR, buffer->device->name, "free", NULL, message);
        ag_ggml_lose(buffer->device, error);
        ag_error_unref(error);
    }
    free(buffer->declared);
    free(buffer);
    return NULL;
}

ag_ggml_buffer *ag_ggml_buffer_ref(ag_ggml_buffer *buffer)
{
    atomic_fetch_add_explicit(&buffer->refs, 1, memory_order_relaxed);
    return buffer;
}

void ag_ggml_buffer_unref(ag_ggml_buffer *buffer)
{
    if (buffer == NULL || buffer->generation != atomic_load(&ag_generation)) return;
    pthread_mutex_lock(all_lock); /* from here on no thread can find it any more */
    bool last = atomic_fetch_sub_explicit(&buffer->refs, 1, memory_order_acq_rel) == 1;
    if (last) {
        *buffer->link = buffer->next;
        if (buffer->next != NULL) buffer->next->link = buffer->link;
    }
    pthread_mutex_unlock(all_lock);
    pthread_t thread;
    if (!last || atomic_load(&buffer->device->lost) != NULL) return; /* the memory was lost with its server */
    if (!buffer->device->remote) {
        give_back_apart(buffer);
    } else if (!ag_thread_start(&thread, give_back_apart, buffer, true)) {
        free(buffer);
    }
}

ag_ggml_buffer *ag_ggml_buffer_at(uintptr_t address, size_t size)
{
    pthread_mutex_lock(all_lock);
    ag_ggml_buffer *found = all;
    while (found != NULL && (address < found->base || address - found->base > found->size ||
                             size > found->size - (address - found->base)))
        found = found->next;
    if (found != NULL) ag_ggml_buffer_ref(found);
    pthread_mutex_unlock(all_lock);
    return found;
}

uintptr_t ag_ggml_buffer_base(const ag_ggml_buffer *buffer)
{
    return buffer->base;
}

size_t ag_ggml_buffer_size(const ag_ggml_buffer *buffer)
{
    return buffer->size;
}

bool ag_ggml_buffer_is_host(const ag_ggml_buffer *buffer)
{
    return buffer->host;
}
