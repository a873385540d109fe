/* Memory of a CUDA queue: the ring that arguments of launches go through, and the scratch of its plans.
 *
 * Not here: the callers that need this memory (plan_run.c, copy.c), when it is free again (queue.c). */
#include <stdlib.h>

#include "state.h"

uint8_t *ag_cuda_ring_take(ag_cuda_queue *q, size_t size, uint64_t *end, int *code)
{
    if (q->ring == NULL) {
        void *ring = NULL;
        *code = ag_cu.cuMemHostAlloc(&ring, AG_CUDA_RING, AG_CU_HOST_PORTABLE);
        if (*code != AG_CU_OK) return NULL;
        q->ring = ring;
    }
    uint64_t at = q->ring_head;
    size_t wanted = (size + 63) & ~(size_t)63;
    if (at % AG_CUDA_RING + wanted > AG_CUDA_RING) at += AG_CUDA_RING - at % AG_CUDA_RING; /* not around the corner */
    pthread_mutex_lock(&q->lock);
    while (at + wanted - q->ring_tail > AG_CUDA_RING) {
        if (q->n_flights == 0) break; /* what is under way frees it all */
        pthread_cond_wait(&q->settled, &q->lock);
    }
    pthread_mutex_unlock(&q->lock);
    *code = AG_CU_OK;
    *end = q->ring_head = at + wanted;
    return q->ring + at % AG_CUDA_RING;
}

ag_error *ag_cuda_scratch(ag_cuda_queue *q, size_t size)
{
    if (size <= q->scratch_size) return NULL;
    size_t rounded = (size + AG_CUDA_SCRATCH - 1) / AG_CUDA_SCRATCH * AG_CUDA_SCRATCH;
    if (q->scratch != 0) { /* first, so that its memory may serve for the new one */
        (void)ag_cu.cuStreamSynchronize(q->cuda);
        ag_cuda_free(q->device, q->scratch);
        q->scratch = 0;
        q->scratch_size = 0;
    }
    ag_error *error = ag_cuda_alloc(q->device, rounded, &q->scratch);
    if (error == NULL) {
        q->scratch_size = rounded;
    } else {
        q->scratch = 0;
    }
    return error;
}
