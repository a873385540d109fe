/* Copies and fills of a CUDA stream: chooses the path of each copy and makes the driver calls.
 *
 * Pinned memory and device memory are copied in place. Pageable memory is staged through pinned memory, and so is host
 * memory with strides that the driver has no copy for. Not here: kernels for copies that would take many driver calls
 * (strided.c), when a part of the ring is free again (flights.c, queue.c). */
#include <stdlib.h>

#include "state.h"

typedef ag_cuda_side side;

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

int ag_cuda_look(ag_cuda_issue *issue, const uint8_t *base, const ag_copy *c, const int64_t *nb, side *out)
{
    const uint8_t *first, *end;
    ag_cuda_extent(base, c, nb, &first, &end);
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

/* Copies `n` items with arbitrary strides. */
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

/* Launches a kernel where that is better; else makes one call for the longest dimension and loops over the others. */
static int copy_reachable(ag_cuda_issue *issue, const ag_copy *copy, side to, side from)
{
    ag_copy c = *copy;
    ag_copy_simplify(&c);
    int d = 0, of_kernel;
    bool peers = to.device && from.device && to.ordinal != from.ordinal;
    if (!peers && ag_cuda_copy_by_kernel(issue, &c, &of_kernel)) return of_kernel;
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

/* -- copies through a ring of pinned memory: for memory that the driver cannot reach, or has no copy for --------------
 *
 * The ring takes such a copy in pieces, several of them in flight at a time: threads of the host gather the next pieces
 * of an upload (hands.c) while the device takes the last, and the waiting thread scatters what has arrived. */

static void packed_strides(const ag_copy *c, int64_t *nb)
{
    int64_t step = (int64_t)c->item;
    for (int d = 0; d < 4; ++d) {
        nb[d] = step;
        step *= c->ne[d];
    }
}

/* Room in the ring for a piece, and the two copies by way of it. */
static int take(ag_cuda_issue *issue, const ag_copy *c, bool up, ag_cuda_piece *out)
{
    int code;
    issue->call = "cuMemHostAlloc";
    uint8_t *ring = ag_cuda_ring_take(issue->queue, ag_copy_size(c), &out->ring_end, &code);
    if (ring == NULL) return code;
    out->near = out->far = *c;
    if (up) {
        out->near.dst = ring;
        packed_strides(c, out->near.dst_nb);
        out->far.src = ring;
        packed_strides(c, out->far.src_nb);
    } else {
        out->near.src = ring;
        packed_strides(c, out->near.src_nb);
        out->far.dst = ring;
        packed_strides(c, out->far.dst_nb);
    }
    ag_copy_simplify(&out->near);
    return AG_CU_OK;
}

/* The device's part of a piece. `last`: the caller's flight is that of the piece. */
static int send(ag_cuda_issue *issue, const ag_cuda_piece *piece, bool up, bool last)
{
    ag_cuda_queue *q = issue->queue;
    ag_cuda_side host = {.pinned = true}, device = {.device = true, .ordinal = q->device->ordinal};
    int code = copy_reachable(issue, &piece->far, up ? device : host, up ? host : device);
    if (code != AG_CU_OK) return code;
    ag_flight flight = {.slot = issue->flight->slot, .ring_end = piece->ring_end};
    if (!up) flight.out = piece->near;
    if (last) { /* with the ticket */
        issue->flight->ring_end = flight.ring_end;
        issue->flight->out = flight.out;
        return AG_CU_OK;
    }
    issue->call = "cuEventRecord";
    return ag_cuda_fly(q, flight);
}

#define RUN 4 /* pieces that are gathered at a time: half of the ring, while the device copies the other half */

/* Pieces that wait for each other: those of an upload are gathered by several threads. */
typedef struct run {
    ag_cuda_piece pieces[RUN];
    size_t n;
} run;

static int send_run(ag_cuda_issue *issue, run *r, bool up, bool last)
{
    int code = AG_CU_OK;
    if (up) ag_cuda_gather(r->pieces, r->n);
    for (size_t i = 0; i < r->n; ++i) {
        if (up)
            ag_cuda_await_piece(&r->pieces[i]); /* also after a failure: a thread may still be gathering this piece */
        if (code == AG_CU_OK) code = send(issue, &r->pieces[i], up, last && i + 1 == r->n);
    }
    r->n = 0;
    return code;
}

/* Cut into pieces of at most AG_CUDA_PIECE bytes: runs of the highest dimension of which one step fits. */
static int copy_staged(ag_cuda_issue *issue, const ag_copy *c, bool up, bool last)
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
    int64_t step = (int64_t)(AG_CUDA_PIECE / unit);
    int64_t at[4] = {0, 0, 0, 0};
    run r = {.n = 0};
    for (;;) {
        int i = cut + 1;
        bool final_row = true;
        for (int d = cut + 1; d < 4; ++d) final_row = final_row && at[d] == c->ne[d] - 1;
        for (int64_t k = 0; k < extent_of_cut; k += step) {
            int64_t n = extent_of_cut - k < step ? extent_of_cut - k : step;
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
            bool end = final_row && k + n == extent_of_cut;
            int code = take(issue, &piece, up, &r.pieces[r.n]);
            if (code == AG_CU_OK) ++r.n;
            if (code == AG_CU_OK && (!up || end || r.n == RUN)) code = send_run(issue, &r, up, end && last);
            if (code != AG_CU_OK) return code;
        }
        for (; i < 4; ++i) {
            if (++at[i] < c->ne[i]) break;
            at[i] = 0;
        }
        if (i >= 4) return AG_CU_OK;
    }
}

/* Copies within one device where source and destination overlap, which the driver leaves undefined. The bytes go
 * through the ring, starting from the end where nothing is overwritten before it was read. */
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

static bool has_overlap(const ag_copy *c)
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

int ag_cuda_copy_between(ag_cuda_issue *issue, const ag_copy *c, side to, side from, bool last)
{
    /* Kernels can always reach the ring, but other pinned memory only where its owner asked for that. */
    bool scattered = ag_cuda_device_has_copier(issue->queue->device) && ag_cuda_is_scattered(c);
    if (!to.device && (!to.pinned || scattered || has_odd_strides(c, c->dst_nb)))
        return copy_staged(issue, c, false, last);
    if (!from.device && (!from.pinned || scattered || has_odd_strides(c, c->src_nb)))
        return copy_staged(issue, c, true, last);
    if (to.device && from.device) ag_cuda_reach(to.ordinal, from.ordinal);
    if (to.device && from.device && has_overlap(c)) return copy_overlapping(issue, c);
    return copy_reachable(issue, c, to, from);
}

int ag_cuda_issue_copy(ag_cuda_issue *issue, const ag_copy *c)
{
    if (c->item == 0) return AG_CU_OK;
    side to, from;
    int code = ag_cuda_look(issue, c->dst, c, c->dst_nb, &to);
    if (code == AG_CU_OK) code = ag_cuda_look(issue, c->src, c, c->src_nb, &from);
    if (code != AG_CU_OK) return code;
    if (!to.device && !from.device) { /* between host addresses, in order */
        ag_cuda_drain(issue->queue);
        ag_copy_run(c);
        return AG_CU_OK;
    }
    if (!to.device) ag_cuda_extent(c->dst, c, c->dst_nb, &issue->flight->host_first, &issue->flight->host_end);
    return ag_cuda_copy_between(issue, c, to, from, true);
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
