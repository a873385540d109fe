/* Copies of a CUDA stream through pinned memory: for memory that the driver cannot reach, or has no copy for.
 *
 * A ring of pinned memory takes such a copy in pieces, several of them in flight at a time: threads of the host gather
 * the next pieces of an upload (hands.c) while the device takes the last, and the waiting thread scatters what has
 * arrived. Not here: which copies come here (copy.c), when a part of the ring is free again (scratch.c, settle.c). */
#include "state.h"

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
    int code = ag_cuda_copy_reachable(issue, &piece->far, up ? device : host, up ? host : device);
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
        if (up) ag_cuda_gathered(&r->pieces[i]); /* also after a failure: a thread may still be gathering this piece */
        if (code == AG_CU_OK) code = send(issue, &r->pieces[i], up, last && i + 1 == r->n);
    }
    r->n = 0;
    return code;
}

/* Cut into pieces of at most AG_CUDA_PIECE bytes: runs of the highest dimension of which one step fits. */
int ag_cuda_copy_staged(ag_cuda_issue *issue, const ag_copy *c, bool up, bool last)
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
int ag_cuda_copy_overlapping(ag_cuda_issue *issue, const ag_copy *c)
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
