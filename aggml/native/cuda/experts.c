/* Experts on a CUDA stream: copies only those matrices of a stack that a tensor of indices names.
 *
 * The indices lie in host memory. The issuing thread reads them once every copy that writes them is complete: copies of
 * other streams, which this stream waits for, and copies of this stream. Not here: reading the indices
 * (runtime/experts.c), the path of a copy (copy.c). */
#include "state.h"

/* Whether a copy in flight writes some of these host bytes. The queue's lock is held. */
static bool under_way(const ag_cuda_queue *q, const uint8_t *first, const uint8_t *end)
{
    for (int i = 0; i < q->n_flights; ++i) {
        const ag_flight *f = &q->flights[(q->first + (size_t)i) % AG_CUDA_FLIGHTS];
        if (f->host_first < end && first < f->host_end) return true;
    }
    return false;
}

static void wait_for_ids(ag_cuda_queue *q, const ag_experts *e)
{
    const ag_copy ids = {.item = sizeof(int32_t), .ne = {e->ids_ne[0], e->ids_ne[1], 1, 1}};
    const int64_t nb[4] = {e->ids_nb[0], e->ids_nb[1], 0, 0};
    const uint8_t *first, *end;
    ag_cuda_extent(e->ids, &ids, nb, &first, &end);
    ag_cuda_catch_up(q);
    pthread_mutex_lock(&q->lock);
    while (under_way(q, first, end)) pthread_cond_wait(&q->settled, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

/* `n` bytes as a copy of one item. */
static ag_copy bytes(uint8_t *dst, const uint8_t *src, size_t n)
{
    int64_t step = (int64_t)n;
    return (ag_copy){.dst = dst,
                     .src = src,
                     .item = n,
                     .ne = {1, 1, 1, 1},
                     .dst_nb = {step, step, step, step},
                     .src_nb = {step, step, step, step}};
}

int ag_cuda_issue_experts(ag_cuda_issue *issue, ag_slot *slot, ag_error **error)
{
    ag_experts *e = &slot->u.experts;
    if (e->n == 0 || e->size == 0) return AG_CU_OK;
    wait_for_ids(issue->queue, e);
    *error = ag_experts_look(slot, issue->queue->name);
    if (*error != NULL || slot->moved == 0) return AG_CU_OK;
    ag_copy whole = bytes(e->dst, e->src, e->size * (size_t)e->n);
    ag_cuda_side to, from;
    int code = ag_cuda_look(issue, whole.dst, &whole, whole.dst_nb, &to);
    if (code == AG_CU_OK) code = ag_cuda_look(issue, whole.src, &whole, whole.src_nb, &from);
    if (code != AG_CU_OK) return code;
    if (!to.device && !from.device) {
        ag_cuda_drain(issue->queue);
        ag_experts_run(slot);
        return AG_CU_OK;
    }
    int64_t last = e->n - 1;
    while (!e->used[last]) --last;
    for (int64_t first = 0, end; first <= last && code == AG_CU_OK;
         first = end + 1) { /* neighbouring experts are copied in one call */
        for (end = first; end < e->n && e->used[end]; ++end) continue;
        size_t at = (size_t)first * e->size, n = (size_t)(end - first) * e->size;
        if (n == 0) continue;
        ag_copy part = bytes(e->dst + at, e->src + at, n);
        code = ag_cuda_copy_between(issue, &part, to, from, end > last);
    }
    return code;
}
