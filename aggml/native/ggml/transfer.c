/* Copies and fills of a stream: between host memory and buffers of ggml, and inside of a device.
 *
 * Runs of bytes between the host and a device, or inside of one, are handed to a backend that takes them asynchronously
 * (`straight`); all else has ended when the call returns.
 *
 * ggml copies bytes of a tensor, so each transfer makes a tensor of bytes where it is to go. Where elements do not lie
 * one behind the other, runs of bytes that do are copied one by one; if they are many and short (a transposed view),
 * all bytes from the first to the last are fetched, changed and written back: bytes between them that another stream
 * writes meanwhile are lost then. Not here: order (queue.c). All of it runs guarded and throws. */
#include <stdlib.h>

#include "state.h"
#include "table/types.h"

#define PIECE ((size_t)1 << 30) /* less than RPC can count: it has 32 bits for the bytes of a tensor */
#define MOST_RUNS 256           /* at most so many runs are copied one by one */

typedef ag_ggml_side side;
typedef ag_ggml_transfer transfer;

/* A tensor of bytes in a buffer; its context is the caller's to free. */
static ag_ggml_tensor *bytes_at(ag_ggml_buffer *buffer, uintptr_t address, size_t n, ag_ggml_context **context)
{
    const ag_ggml_functions *f = buffer->device->f;
    ag_ggml_init_params params = {.size = f->ggml_tensor_overhead() + 256, .no_alloc = true};
    *context = f->ggml_init(params);
    if (*context == NULL) ag_ggml_fail("no memory for a tensor");
    ag_ggml_tensor *tensor =
        f->ggml_new_tensor_4d(*context, ag_ggml_type(buffer->device->library, AGK_I8), (int64_t)n, 1, 1, 1);
    if (f->ggml_backend_tensor_alloc(buffer->handle, tensor, (void *)(buffer->real + (address - buffer->base))) != 0)
        ag_ggml_fail("no tensor can lie there");
    return tensor;
}

/* Memory in one of the device's own formats, which the library converts a whole tensor to. */
static ag_ggml_tensor *whole(ag_ggml_buffer *buffer, uintptr_t address, size_t n)
{
    ag_ggml_declared d;
    if (!ag_ggml_declared_at(buffer, address - buffer->base, &d)) ag_ggml_fail("no tensor begins there");
    if (buffer->device->f->ggml_nbytes(d.tensor) != n)
        ag_ggml_fail("memory of this format is written and read a whole tensor at a time");
    return d.tensor;
}

static void put(ag_ggml_buffer *buffer, ag_ggml_handle *backend, uint8_t *to, const uint8_t *from, size_t n)
{
    const ag_ggml_functions *f = buffer->device->f;
    if (buffer->extra) {
        f->ggml_backend_tensor_set(whole(buffer, (uintptr_t)to, n), from, 0, n);
        return;
    }
    for (size_t done = 0; done < n; done += PIECE) {
        ag_ggml_context *context;
        size_t now = n - done < PIECE ? n - done : PIECE;
        ag_ggml_tensor *tensor = bytes_at(buffer, (uintptr_t)to + done, now, &context);
        if (backend != NULL) {
            f->ggml_backend_tensor_set_async(backend, tensor, from + done, 0, now);
        } else {
            f->ggml_backend_tensor_set(tensor, from + done, 0, now);
        }
        f->ggml_free(context);
    }
}

static void fetch(ag_ggml_buffer *buffer, ag_ggml_handle *backend, uint8_t *to, const uint8_t *from, size_t n)
{
    const ag_ggml_functions *f = buffer->device->f;
    if (buffer->extra) {
        f->ggml_backend_tensor_get(whole(buffer, (uintptr_t)from, n), to, 0, n);
        return;
    }
    for (size_t done = 0; done < n; done += PIECE) {
        ag_ggml_context *context;
        size_t now = n - done < PIECE ? n - done : PIECE;
        ag_ggml_tensor *tensor = bytes_at(buffer, (uintptr_t)from + done, now, &context);
        if (backend != NULL) {
            f->ggml_backend_tensor_get_async(backend, tensor, to + done, 0, now);
        } else {
            f->ggml_backend_tensor_get(tensor, to + done, 0, now);
        }
        f->ggml_free(context);
    }
}

static bool is_apart(side to, const uint8_t *dst, side from, const uint8_t *src, size_t n)
{
    return to.buffer != from.buffer || dst + n <= src || src + n <= dst;
}

static void move_inside(const transfer *t, uint8_t *dst, const uint8_t *src, size_t n)
{
    ag_ggml_buffer *to = t->to.buffer, *from = t->from.buffer;
    const ag_ggml_functions *f = to->device->f;
    if (!is_apart(t->to, dst, t->from, src, n) || to->extra || from->extra) { /* ggml leaves this case undefined */
        uint8_t *through = malloc(n);
        if (through == NULL) ag_ggml_fail("no memory for a copy through the host");
        fetch(from, NULL, through, src, n);
        put(to, NULL, dst, through, n);
        free(through);
        return;
    }
    for (size_t done = 0; done < n; done += PIECE) {
        ag_ggml_context *contexts[2];
        size_t now = n - done < PIECE ? n - done : PIECE;
        ag_ggml_tensor *source = bytes_at(from, (uintptr_t)src + done, now, &contexts[0]);
        ag_ggml_tensor *target = bytes_at(to, (uintptr_t)dst + done, now, &contexts[1]);
        if (t->backend != NULL) {
            f->ggml_backend_tensor_copy_async(t->backend, t->backend, source, target);
        } else {
            f->ggml_backend_tensor_copy(source, target);
        }
        f->ggml_free(contexts[0]);
        f->ggml_free(contexts[1]);
    }
}

static void move(const transfer *t, uint8_t *dst, const uint8_t *src, size_t n)
{
    if (t->to.buffer != NULL && t->from.buffer != NULL) {
        move_inside(t, dst, src, n);
    } else if (t->to.buffer != NULL) {
        put(t->to.buffer, t->backend, dst, src, n);
    } else {
        fetch(t->from.buffer, t->backend, dst, src, n);
    }
}

/* The bytes from the first to behind the last item. */
static size_t reach(const ag_copy *c, const int64_t *nb, int64_t *first)
{
    int64_t low = 0, high = 0;
    for (int k = 0; k < 4; ++k) {
        int64_t step = (c->ne[k] - 1) * nb[k];
        if (step < 0) {
            low += step;
        } else {
            high += step;
        }
    }
    *first = low;
    return (size_t)(high - low) + c->item;
}

static bool solid(const ag_copy *c, const int64_t *nb)
{
    int64_t step = (int64_t)c->item;
    for (int k = 0; k < 4; ++k) {
        if (c->ne[k] != 1 && nb[k] != step) return false;
        step *= c->ne[k];
    }
    return true;
}

static void packed(const ag_copy *c, int64_t *nb)
{
    int64_t step = (int64_t)c->item;
    for (int k = 0; k < 4; ++k) {
        nb[k] = step;
        step *= c->ne[k];
    }
}

static void each_run(const transfer *t)
{
    const ag_copy *c = &t->c;
    for (int64_t n = 0, all = c->ne[0] * c->ne[1] * c->ne[2] * c->ne[3]; n < all; ++n) {
        int64_t rest = n, dst = 0, src = 0;
        for (int k = 0; k < 4; ++k) {
            dst += rest % c->ne[k] * c->dst_nb[k];
            src += rest % c->ne[k] * c->src_nb[k];
            rest /= c->ne[k];
        }
        move(t, c->dst + dst, c->src + src, c->item);
    }
}

/* The elements of a buffer, whatever their order, as a contiguous block in host memory. */
static void gather(const ag_copy *c, ag_ggml_buffer *from, uint8_t *block)
{
    ag_copy near = *c;
    packed(c, near.dst_nb);
    near.dst = block;
    if (from == NULL) {
        ag_copy_simplify(&near);
        ag_copy_run(&near);
        return;
    }
    int64_t first;
    size_t size = reach(c, c->src_nb, &first);
    uint8_t *all = malloc(size);
    if (all == NULL) ag_ggml_fail("no memory to gather %zu bytes", size);
    fetch(from, NULL, all, c->src + first, size);
    near.src = all - first;
    ag_copy_simplify(&near);
    ag_copy_run(&near);
    free(all);
}

static void scatter(const ag_copy *c, ag_ggml_buffer *to, const uint8_t *block)
{
    ag_copy near = *c;
    packed(c, near.src_nb);
    near.src = block;
    int64_t first;
    size_t size = reach(c, c->dst_nb, &first);
    uint8_t *all = to == NULL ? NULL : malloc(size);
    if (to != NULL) {
        if (all == NULL) ag_ggml_fail("no memory to scatter %zu bytes", size);
        if (size != ag_copy_size(c)) fetch(to, NULL, all, c->dst + first, size);
        near.dst = all - first;
    }
    ag_copy_simplify(&near);
    ag_copy_run(&near);
    if (to != NULL) put(to, NULL, c->dst + first, all, size);
    free(all);
}

static bool in_runs(const transfer *t)
{
    const ag_copy *c = &t->c;
    int64_t runs = c->ne[0] * c->ne[1] * c->ne[2] * c->ne[3];
    return runs == 1 || (runs <= MOST_RUNS && (t->to.buffer == NULL || !solid(c, c->dst_nb)) &&
                         (t->from.buffer == NULL || !solid(c, c->src_nb)));
}

/* Host memory is read where it lies, whoever owns it. */
static side side_of(const ag_copy *c, const uint8_t *base, const int64_t *nb)
{
    int64_t first;
    size_t size = reach(c, nb, &first);
    side found = {.first = (uint8_t *)(uintptr_t)base + first};
    found.buffer = ag_ggml_buffer_at((uintptr_t)found.first, size);
    if (found.buffer != NULL && found.buffer->host) {
        ag_ggml_buffer_unref(found.buffer);
        found.buffer = NULL;
    }
    return found;
}

static bool takes(const ag_ggml_device *device, const ag_ggml_buffer *buffer)
{
    return buffer == NULL || (buffer->device == device && !buffer->extra);
}

void ag_ggml_transfer_of(transfer *t, const ag_ggml_device *device, const ag_copy *c)
{
    *t = (transfer){.c = *c};
    if (c->item == 0) return;
    t->to = side_of(c, c->dst, c->dst_nb);
    t->from = side_of(c, c->src, c->src_nb);
    ag_copy_simplify(&t->c);
    size_t size = ag_copy_size(&t->c);
    if (device == NULL || size == 0 || (t->to.buffer == NULL && t->from.buffer == NULL)) return;
    bool inside = t->to.buffer != NULL && t->from.buffer != NULL;
    t->straight = takes(device, t->to.buffer) && takes(device, t->from.buffer) && in_runs(t) &&
                  (!inside || t->to.buffer != t->from.buffer ||
                   (size == t->c.item && is_apart(t->to, t->c.dst, t->from, t->c.src, size)));
}

void ag_ggml_transfer_run(transfer *t, ag_ggml_handle *backend)
{
    const ag_copy *c = &t->c;
    size_t size = c->item == 0 ? 0 : ag_copy_size(c);
    t->backend = backend;
    if (size == 0) return;
    if (t->to.buffer == NULL && t->from.buffer == NULL) {
        ag_copy_run(c);
        return;
    }
    if (in_runs(t)) {
        each_run(t);
        return;
    }
    uint8_t *block = malloc(size);
    if (block == NULL) ag_ggml_fail("no memory to stage %zu bytes", size);
    gather(c, t->from.buffer, block);
    if (t->to.buffer != NULL && solid(c, c->dst_nb)) {
        put(t->to.buffer, NULL, c->dst, block, size);
    } else {
        scatter(c, t->to.buffer, block);
    }
    free(block);
}

void ag_ggml_fill(ag_ggml_device *device, uint8_t *dst, int value, size_t size)
{
    (void)device;
    if (size == 0) return;
    ag_ggml_buffer *buffer = ag_ggml_buffer_at((uintptr_t)dst, size);
    if (buffer == NULL || buffer->host) {
        memset(dst, value, size);
    } else if (value == 0 && (uintptr_t)dst == buffer->base && size == buffer->size) {
        /* Vulkan's backend treats the value as one of 32 bits. */
        buffer->device->f->ggml_backend_buffer_clear(buffer->handle, 0);
    } else {
        size_t piece = size < ((size_t)1 << 20) ? size : (size_t)1 << 20;
        uint8_t *block = malloc(piece);
        if (block == NULL) ag_ggml_fail("no memory to fill");
        memset(block, value, piece);
        for (size_t done = 0; done < size; done += piece)
            put(buffer, NULL, dst + done, block, size - done < piece ? size - done : piece);
        free(block);
    }
    ag_ggml_buffer_unref(buffer);
}
