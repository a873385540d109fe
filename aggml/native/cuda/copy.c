/* Copies and fills of a CUDA stream: chooses the path of each copy and makes the driver calls.
 *
 * Pinned memory and device memory are copied in place. Pageable memory is staged through pinned memory (staging.c), and
 * so is host memory with strides that the driver has no copy for. Not here: kernels for copies that would take many
 * driver calls (strided.c). */
#include <stdlib.h>

#include "state.h"

typedef ag_cuda_side side;

/* The range of bytes that one side of a copy touches: from its lowest byte to just past its highest. */
void ag_cuda_extent(const uint8_t *base, const ag_copy *c, const int64_t *nb, const uint8_t **first,
                    const uint8_t **end)
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
int ag_cuda_copy_reachable(ag_cuda_issue *issue, const ag_copy *copy, side to, side from)
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

int ag_cuda_copy_between(ag_cuda_issue *issue, const ag_copy *c, side to, side from, bool last)
{
    /* Kernels can always reach the ring, but other pinned memory only where its owner asked for that. */
    bool gathered = ag_cuda_device_has_copier(issue->queue->device) && ag_cuda_is_scattered(c);
    if (!to.device && (!to.pinned || gathered || has_odd_strides(c, c->dst_nb)))
        return ag_cuda_copy_staged(issue, c, false, last);
    if (!from.device && (!from.pinned || gathered || has_odd_strides(c, c->src_nb)))
        return ag_cuda_copy_staged(issue, c, true, last);
    if (to.device && from.device) ag_cuda_reach(to.ordinal, from.ordinal);
    if (to.device && from.device && overlap(c)) return ag_cuda_copy_overlapping(issue, c);
    return ag_cuda_copy_reachable(issue, c, to, from);
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
