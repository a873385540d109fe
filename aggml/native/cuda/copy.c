/* Copies and fills of a CUDA stream: the calls of the driver, and staging for memory that it cannot reach.
 *
 * Pinned memory and memory of devices are copied where they lie. What is pageable, or lies on the host with strides
 * that the driver has no copy for, goes through a ring of pinned memory, in pieces, several under way at once: this
 * thread gathers the next while the device takes the last, and the waiting thread scatters what has arrived. */
#include <stdlib.h>

#include "state.h"

typedef struct side {
    bool device;
    bool pinned; /* host memory that the driver copies from and to by itself */
    int ordinal;
} side;

/* The bytes from the lowest to behind the highest that one side of a copy touches. */
static void extent(const uint8_t *base, const ag_copy *c, const int64_t *nb, const uint8_t **first, const uint8_t **end)
{
    const uint8_t *low = base, *high = base;
    for (int d = 0; d < 4; ++d) {
        int64_t reach = (c->ne[d] - 1) * nb[d];
        if (reach < 0) {
            low += reach;
        } else {
            high += reach;
        }
    }
    *first = low;
    *end = high + c->item;
}

static int ask(ag_cuda_issue *issue, const void *address, side *out)
{
    static const int attributes[] = {AG_CU_POINTER_KIND, AG_CU_POINTER_DEVICE};
    unsigned kind = 0;
    int ordinal = 0;
    void *values[] = {&kind, &ordinal};
    int code = AG_CU(issue, cuPointerGetAttributes, 2, attributes, values, (uint64_t)(uintptr_t)address);
    *out = (side){.device = kind == AG_CU_DEVICE, .pinned = kind == AG_CU_HOST, .ordinal = ordinal};
    return code;
}

static int look(ag_cuda_issue *issue, const uint8_t *base, const ag_copy *c, const int64_t *nb, side *out)
{
    const uint8_t *first, *end;
    extent(base, c, nb, &first, &end);
    int code = ask(issue, first, out);
    if (code != AG_CU_OK || !out->pinned) return code;
    side last; /* a part of an array may be registered */
    code = ask(issue, end - 1, &last);
    out->pinned = last.pinned;
    return code;
}

/* -- copies between addresses that the driver reaches */

static int copy_bytes(ag_cuda_issue *issue, uint8_t *dst, side to, const uint8_t *src, side from, size_t n)
{
    void *stream = issue->queue->cuda;
    uint64_t d = (uint64_t)(uintptr_t)dst, s = (uint64_t)(uintptr_t)src;
    issue->ran = true;
    if (!to.device) return AG_CU(issue, cuMemcpyDtoHAsync, dst, s, n, stream);
    if (!from.device) return AG_CU(issue, cuMemcpyHtoDAsync, d, src, n, stream);
    if (to.ordinal == from.ordinal) return AG_CU(issue, cuMemcpyDtoDAsync, d, s, n, stream);
    void *contexts[2];
    int code = AG_CU(issue, cuDevicePrimaryCtxRetain, &contexts[0], to.ordinal); /* once more; never given back */
    if (code == AG_CU_OK) code = AG_CU(issue, cuDevicePrimaryCtxRetain, &contexts[1], from.ordinal);
    if (code != AG_CU_OK) return code;
    return AG_CU(issue, cuMemcpyPeerAsync, d, contexts[0], s, contexts[1], n, stream);
}

#define MAX_PITCH INT32_MAX

/* `n` items, at distances that may be any. */
static int copy_row(ag_cuda_issue *issue, const ag_copy *c, uint8_t *dst, side to, const uint8_t *src, side from, int d)
{
    int64_t n = c->ne[d], dst_nb = c->dst_nb[d], src_nb = c->src_nb[d], item = (int64_t)c->item;
    bool peers = to.device && from.device && to.ordinal != from.ordinal;
    if (n > 1 && !peers && dst_nb >= item && src_nb >= item && dst_nb <= MAX_PITCH && src_nb <= MAX_PITCH) {
        ag_cu_copy_2d rows = {.src_kind = from.device ? AG_CU_DEVICE : AG_CU_HOST,
                              .src_host = src,
                              .src_device = (uint64_t)(uintptr_t)src,
                              .src_pitch = (size_t)src_nb,
                              .dst_kind = to.device ? AG_CU_DEVICE : AG_CU_HOST,
                              .dst_host = dst,
                              .dst_device = (uint64_t)(uintptr_t)dst,
                              .dst_pitch = (size_t)dst_nb,
                              .width = c->item,
                              .height = (size_t)n};
        issue->ran = true;
        return AG_CU(issue, cuMemcpy2DAsync, &rows, issue->queue->cuda);
    }
    int code = AG_CU_OK;
    for (int64_t i = 0; i < n && code == AG_CU_OK; ++i)
        code = copy_bytes(issue, dst + i * dst_nb, to, src + i * src_nb, from, c->item);
    return code;
}

/* One call for the longest dimension, a loop over the others. */
static int copy_reachable(ag_cuda_issue *issue, const ag_copy *copy, side to, side from)
{
    ag_copy c = *copy;
    ag_copy_simplify(&c);
    int d = 0;
    for (int i = 1; i < 4; ++i) {
        if (c.ne[i] > c.ne[d]) d = i;
    }
    int64_t at[4] = {0, 0, 0, 0};
    for (;;) {
        int64_t dst = 0, src = 0;
        for (int i = 0; i < 4; ++i) {
            dst += at[i] * c.dst_nb[i];
            src += at[i] * c.src_nb[i];
        }
        int code = copy_row(issue, &c, c.dst + dst, to, c.src + src, from, d);
        if (code != AG_CU_OK) return code;
        int i = 0;
        for (; i < 4; ++i) {
            if (i == d) continue;
            if (++at[i] < c.ne[i]) break;
            at[i] = 0;
        }
        if (i == 4) return AG_CU_OK;
    }
}

/* -- staging */

static void packed_strides(const ag_copy *c, int64_t *nb)
{
    int64_t step = (int64_t)c->item;
    for (int d = 0; d < 4; ++d) {
        nb[d] = step;
        step *= c->ne[d];
    }
}

static int stage(ag_cuda_issue *issue, const ag_copy *piece, bool up, bool last)
{
    ag_cuda_queue *q = issue->queue;
    size_t size = ag_copy_size(piece);
    uint64_t end;
    int code;
    issue->call = "cuMemHostAlloc";
    uint8_t *ring = ag_cuda_ring_take(q, size, &end, &code);
    if (ring == NULL) return code;
    ag_copy near = *piece, far = *piece; /* between host and ring; between ring and device */
    if (up) {
        near.dst = ring;
        packed_strides(piece, near.dst_nb);
        far.src = ring;
        packed_strides(piece, far.src_nb);
        ag_copy_simplify(&near);
        ag_copy_run(&near);
    } else {
        near.src = ring;
        packed_strides(piece, near.src_nb);
        far.dst = ring;
        packed_strides(piece, far.dst_nb);
        ag_copy_simplify(&near);
    }
    side host = {.pinned = true}, device = {.device = true, .ordinal = q->device->ordinal};
    code = copy_reachable(issue, &far, up ? device : host, up ? host : device);
    if (code != AG_CU_OK) return code;
    ag_flight flight = {.slot = issue->flight->slot, .ring_end = end};
    if (!up) flight.out = near;
    if (last) { /* the caller's flight, with the ticket */
        issue->flight->ring_end = flight.ring_end;
        issue->flight->out = flight.out;
        return AG_CU_OK;
    }
    issue->call = "cuEventRecord";
    return ag_cuda_fly(q, flight);
}

/* Cut into pieces of at most AG_CUDA_PIECE bytes: runs of the highest dimension of which one step fits. */
static int copy_staged(ag_cuda_issue *issue, const ag_copy *c, bool up)
{
    if (up) ag_cuda_catch_up(issue->queue);
    int cut = 0; /* the dimension that is cut into runs; -1: items are cut into bytes */
    size_t unit = c->item;
    if (unit > AG_CUDA_PIECE) {
        cut = -1;
        unit = 1;
    } else {
        while (cut < 3 && unit * (size_t)c->ne[cut] <= AG_CUDA_PIECE) unit *= (size_t)c->ne[cut++];
    }
    int64_t extent_of_cut = cut < 0 ? (int64_t)c->item : c->ne[cut];
    int64_t run = (int64_t)(AG_CUDA_PIECE / unit);
    int64_t at[4] = {0, 0, 0, 0};
    for (;;) {
        int i = cut + 1;
        bool final_row = true;
        for (int d = cut + 1; d < 4; ++d) final_row = final_row && at[d] == c->ne[d] - 1;
        for (int64_t k = 0; k < extent_of_cut; k += run) {
            int64_t n = extent_of_cut - k < run ? extent_of_cut - k : run;
            ag_copy piece = *c;
            for (int d = 0; d < 4; ++d) {
                piece.dst += at[d] * c->dst_nb[d];
                piece.src += at[d] * c->src_nb[d];
                if (d > cut) piece.ne[d] = 1;
            }
            if (cut < 0) {
                piece.dst += k;
                piece.src += k;
                piece.item = (size_t)n;
            } else {
                piece.dst += k * c->dst_nb[cut];
                piece.src += k * c->src_nb[cut];
                piece.ne[cut] = n;
            }
            int code = stage(issue, &piece, up, final_row && k + n == extent_of_cut);
            if (code != AG_CU_OK) return code;
        }
        for (; i < 4; ++i) {
            if (++at[i] < c->ne[i]) break;
            at[i] = 0;
        }
        if (i >= 4) return AG_CU_OK;
    }
}

/* Bytes within one device onto others that they overlap, which the driver leaves undefined: by way of the ring, from
 * the end on which nothing is overwritten before it was read. */
static int copy_overlapping(ag_cuda_issue *issue, const ag_copy *c)
{
    ag_cuda_queue *q = issue->queue;
    uint64_t dst = (uint64_t)(uintptr_t)c->dst, src = (uint64_t)(uintptr_t)c->src;
    issue->ran = true;
    for (size_t done = 0; done < c->item;) {
        size_t n = c->item - done < AG_CUDA_PIECE ? c->item - done : AG_CUDA_PIECE;
        size_t at = dst < src ? done : c->item - done - n;
        uint64_t end;
        int code;
        issue->call = "cuMemHostAlloc";
        uint8_t *ring = ag_cuda_ring_take(q, n, &end, &code);
        if (ring == NULL) return code;
        code = AG_CU(issue, cuMemcpyDtoHAsync, ring, src + at, n, q->cuda);
        if (code == AG_CU_OK) code = AG_CU(issue, cuMemcpyHtoDAsync, dst + at, ring, n, q->cuda);
        if (code != AG_CU_OK) return code;
        done += n;
        issue->call = "cuEventRecord";
        if (done == c->item) {
            issue->flight->ring_end = end;
        } else if ((code = ag_cuda_fly(q, (ag_flight){.slot = issue->flight->slot, .ring_end = end})) != AG_CU_OK) {
            return code;
        }
    }
    return AG_CU_OK;
}

static bool overlap(const ag_copy *c)
{
    bool one = c->ne[0] == 1 && c->ne[1] == 1 && c->ne[2] == 1 && c->ne[3] == 1;
    return one && c->dst != c->src && c->dst < c->src + c->item && c->src < c->dst + c->item;
}

/* -- operations */

static bool has_odd_strides(const ag_copy *c, const int64_t *nb)
{
    for (int d = 0; d < 4; ++d) {
        if (c->ne[d] > 1 && nb[d] < (int64_t)c->item) return true;
    }
    return false;
}

int ag_cuda_issue_copy(ag_cuda_issue *issue, const ag_copy *c)
{
    if (c->item == 0) return AG_CU_OK;
    side to, from;
    int code = look(issue, c->dst, c, c->dst_nb, &to);
    if (code == AG_CU_OK) code = look(issue, c->src, c, c->src_nb, &from);
    if (code != AG_CU_OK) return code;
    if (!to.device && !from.device) { /* between host addresses, in order */
        ag_cuda_drain(issue->queue);
        ag_copy_run(c);
        return AG_CU_OK;
    }
    if (!to.device && (!to.pinned || has_odd_strides(c, c->dst_nb))) return copy_staged(issue, c, false);
    if (!from.device && (!from.pinned || has_odd_strides(c, c->src_nb))) return copy_staged(issue, c, true);
    if (to.device && from.device && to.ordinal != from.ordinal)
        ag_cuda_reach(issue->queue->device, to.ordinal == issue->queue->device->ordinal ? from.ordinal : to.ordinal);
    if (to.device && from.device && overlap(c)) return copy_overlapping(issue, c);
    return copy_reachable(issue, c, to, from);
}

int ag_cuda_issue_fill(ag_cuda_issue *issue)
{
    uint8_t *dst = issue->slot->u.fill.dst;
    size_t size = issue->slot->u.fill.size;
    unsigned char value = (unsigned char)issue->slot->u.fill.value;
    if (size == 0) return AG_CU_OK;
    side to;
    int code = ask(issue, dst, &to);
    if (code != AG_CU_OK) return code;
    if (!to.device) {
        ag_cuda_drain(issue->queue);
        memset(dst, value, size);
        return AG_CU_OK;
    }
    issue->ran = true;
    return AG_CU(issue, cuMemsetD8Async, (uint64_t)(uintptr_t)dst, value, size, issue->queue->cuda);
}
