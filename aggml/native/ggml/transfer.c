/* Copies and fills of a stream: between host memory and buffers of ggml, and inside of a device.
 *
 * ggml copies bytes of a tensor, so each transfer makes a tensor of bytes where it is to go. Where elements do not lie
 * one behind the other, runs of bytes that do are copied one by one; if they are many and short (a transposed view),
 * all bytes from the first to the last are fetched, changed and written back: bytes between them that another stream
 * writes meanwhile are lost then. Not here: order (queue.c). All of it runs guarded and throws. */
#include <stdlib.h>

#include "state.h"
#include "table/types.h"

#define PIECE ((size_t)1 << 30) /* RPC counts bytes of a tensor in 32 bits */
#define FEW 256                 /* runs that are copied one by one at most */

typedef struct side {
    ag_ggml_buffer *buffer; /* NULL: host memory, of whomever */
    uint8_t *first;
} side;

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

/* Into a format of the device's own, which the library brings a whole tensor into. */
static void put_whole(ag_ggml_buffer *buffer, uint8_t *to, const uint8_t *from, size_t n)
{
    const ag_ggml_functions *f = buffer->device->f;
    ag_ggml_declared d;
    size_t offset = (uintptr_t)to - buffer->base;
    if (!ag_ggml_declared_at(buffer, offset, &d)) ag_ggml_fail("no tensor begins there");
    ag_ggml_init_params params = {.size = f->ggml_tensor_overhead() + 256, .no_alloc = true};
    ag_ggml_context *context = f->ggml_init(params);
    if (context == NULL) ag_ggml_fail("no memory for a tensor");
    ag_ggml_tensor *tensor = f->ggml_new_tensor_4d(context, d.type, d.ne[0], d.ne[1], d.ne[2], d.ne[3]);
    if (f->ggml_nbytes(tensor) != n) ag_ggml_fail("memory of this format is written a whole tensor at a time");
    if (f->ggml_backend_tensor_alloc(buffer->handle, tensor, (void *)(buffer->real + offset)) != 0)
        ag_ggml_fail("no tensor can lie there");
    f->ggml_backend_tensor_set(tensor, from, 0, n);
    f->ggml_free(context);
}

static void put(ag_ggml_buffer *buffer, uint8_t *to, const uint8_t *from, size_t n)
{
    const ag_ggml_functions *f = buffer->device->f;
    if (buffer->extra) {
        put_whole(buffer, to, from, n);
        return;
    }
    for (size_t done = 0; done < n; done += PIECE) {
        ag_ggml_context *context;
        size_t now = n - done < PIECE ? n - done : PIECE;
        ag_ggml_tensor *tensor = bytes_at(buffer, (uintptr_t)to + done, now, &context);
        f->ggml_backend_tensor_set(tensor, from + done, 0, now);
        f->ggml_free(context);
    }
}

static void fetch(ag_ggml_buffer *buffer, uint8_t *to, const uint8_t *from, size_t n)
{
    const ag_ggml_functions *f = buffer->device->f;
    for (size_t done = 0; done < n; done += PIECE) {
        ag_ggml_context *context;
        size_t now = n - done < PIECE ? n - done : PIECE;
        ag_ggml_tensor *tensor = bytes_at(buffer, (uintptr_t)from + done, now, &context);
        f->ggml_backend_tensor_get(tensor, to + done, 0, now);
        f->ggml_free(context);
    }
}

static void move_inside(ag_ggml_buffer *to, uint8_t *dst, ag_ggml_buffer *from, const uint8_t *src, size_t n)
{
    const ag_ggml_functions *f = to->device->f;
    bool apart = to != from || dst + n <= src || src + n <= dst;
    if (!apart) { /* the library leaves it undefined */
        uint8_t *through = malloc(n);
        if (through == NULL) ag_ggml_fail("no memory for a copy onto itself");
        fetch(from, through, src, n);
        put(to, dst, through, n);
        free(through);
        return;
    }
    for (size_t done = 0; done < n; done += PIECE) {
        ag_ggml_context *contexts[2];
        size_t now = n - done < PIECE ? n - done : PIECE;
        ag_ggml_tensor *source = bytes_at(from, (uintptr_t)src + done, now, &contexts[0]);
        ag_ggml_tensor *target = bytes_at(to, (uintptr_t)dst + done, now, &contexts[1]);
        f->ggml_backend_tensor_copy(source, target);
        f->ggml_free(contexts[0]);
        f->ggml_free(contexts[1]);
    }
}

static void move(side to, uint8_t *dst, side from, const uint8_t *src, size_t n)
{
    if (to.buffer != NULL && from.buffer != NULL) {
        move_inside(to.buffer, dst, from.buffer, src, n);
    } else if (to.buffer != NULL) {
        put(to.buffer, dst, src, n);
    } else {
        fetch(from.buffer, dst, src, n);
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

static void each_run(const ag_copy *c, side to, side from)
{
    for (int64_t n = 0, all = c->ne[0] * c->ne[1] * c->ne[2] * c->ne[3]; n < all; ++n) {
        int64_t rest = n, dst = 0, src = 0;
        for (int k = 0; k < 4; ++k) {
            dst += rest % c->ne[k] * c->dst_nb[k];
            src += rest % c->ne[k] * c->src_nb[k];
            rest /= c->ne[k];
        }
        move(to, c->dst + dst, from, c->src + src, c->item);
    }
}

/* Elements of a buffer in an order of its own, as a solid block in host memory. */
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
    fetch(from, all, c->src + first, size);
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
        if (size != ag_copy_size(c)) fetch(to, all, c->dst + first, size);
        near.dst = all - first;
    }
    ag_copy_simplify(&near);
    ag_copy_run(&near);
    if (to != NULL) put(to, c->dst + first, all, size);
    free(all);
}

static void copy_between(const ag_copy *copy, side to, side from)
{
    ag_copy c = *copy;
    ag_copy_simplify(&c);
    int64_t runs = c.ne[0] * c.ne[1] * c.ne[2] * c.ne[3];
    size_t size = ag_copy_size(&c);
    if (size == 0) return;
    if (runs == 1 ||
        (runs <= FEW && (to.buffer == NULL || !solid(&c, c.dst_nb)) && (from.buffer == NULL || !solid(&c, c.src_nb)))) {
        each_run(&c, to, from);
        return;
    }
    uint8_t *block = malloc(size);
    if (block == NULL) ag_ggml_fail("no memory to stage %zu bytes", size);
    gather(&c, from.buffer, block);
    if (to.buffer != NULL && solid(&c, c.dst_nb)) {
        put(to.buffer, c.dst, block, size);
    } else {
        scatter(&c, to.buffer, block);
    }
    free(block);
}

/* Memory of the host is read where it lies, whoever gave it. */
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

void ag_ggml_copy(ag_ggml_device *device, const ag_copy *c)
{
    (void)device;
    if (c->item == 0) return;
    side to = side_of(c, c->dst, c->dst_nb), from = side_of(c, c->src, c->src_nb);
    if (to.buffer == NULL && from.buffer == NULL) {
        ag_copy_run(c);
        return;
    }
    copy_between(c, to, from);
    ag_ggml_buffer_unref(to.buffer);
    ag_ggml_buffer_unref(from.buffer);
}

void ag_ggml_fill(ag_ggml_device *device, uint8_t *dst, int value, size_t size)
{
    (void)device;
    if (size == 0) return;
    ag_ggml_buffer *buffer = ag_ggml_buffer_at((uintptr_t)dst, size);
    if (buffer == NULL || buffer->host) {
        memset(dst, value, size);
    } else if (value == 0 && (uintptr_t)dst == buffer->base && size == buffer->size) {
        /* Vulkan's takes the value for that of 32 bits. */
        buffer->device->f->ggml_backend_buffer_clear(buffer->handle, 0);
    } else {
        size_t piece = size < ((size_t)1 << 20) ? size : (size_t)1 << 20;
        uint8_t *block = malloc(piece);
        if (block == NULL) ag_ggml_fail("no memory to fill");
        memset(block, value, piece);
        for (size_t done = 0; done < size; done += piece)
            put(buffer, dst + done, block, size - done < piece ? size - done : piece);
        free(block);
    }
    ag_ggml_buffer_unref(buffer);
}
