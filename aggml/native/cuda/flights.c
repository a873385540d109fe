/* What a CUDA queue has in flight, and the memory that this needs: the ring through which bytes and arguments go, and
 * the scratch of plans. By the issuing thread.
 *
 * Not here: what is issued (copy.c, plan.c), the end of a flight, when its part of the ring is free again (queue.c). */
#include <stdlib.h>

#include "state.h"

int ag_cuda_open(ag_cuda_queue *q, const char **call)
{
    if (q->cuda != NULL) return AG_CU_OK;
    *call = "cuDevicePrimaryCtxRetain";
    int code = ag_cuda_context(q->device);
    if (code != AG_CU_OK) return code;
    *call = "cuStreamCreate";
    return ag_cu.cuStreamCreate(&q->cuda, AG_CU_STREAM_NON_BLOCKING);
}

void ag_cuda_push(ag_cuda_queue *q, const ag_flight *flight)
{
    pthread_mutex_lock(&q->lock);
    while (q->n_flights == AG_CUDA_FLIGHTS) pthread_cond_wait(&q->settled, &q->lock);
    q->flights[(q->first + (size_t)q->n_flights) % AG_CUDA_FLIGHTS] = *flight;
    if (flight->plan) ++q->n_plans;
    if (flight->follow) ++q->n_follows;
    if (atomic_fetch_add(&q->n_flights, 1) == 0) pthread_cond_signal(&q->to_settle);
    pthread_mutex_unlock(&q->lock);
}

int ag_cuda_fly(ag_cuda_queue *q, ag_flight flight)
{
    int code = AG_CU_OK;
    pthread_mutex_lock(&q->lock);
    flight.event = q->n_events > 0 ? q->events[--q->n_events] : NULL;
    pthread_mutex_unlock(&q->lock);
    if (flight.event == NULL) code = ag_cu.cuEventCreate(&flight.event, AG_CU_EVENT_BLOCKING_NO_TIMING);
    if (code != AG_CU_OK) return code;
    code = ag_cu.cuEventRecord(flight.event, q->cuda);
    if (code != AG_CU_OK) {
        (void)ag_cu.cuEventDestroy(flight.event);
        return code;
    }
    ag_cuda_push(q, &flight);
    return AG_CU_OK;
}

void ag_cuda_drain(ag_cuda_queue *q)
{
    pthread_mutex_lock(&q->lock);
    while (q->n_flights > 0) pthread_cond_wait(&q->settled, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

void ag_cuda_catch_up(ag_cuda_queue *q)
{
    pthread_mutex_lock(&q->lock);
    while (q->n_follows > 0) pthread_cond_wait(&q->settled, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

const char *ag_cuda_tensor_of(ag_slot *slot)
{
    if (slot == NULL || slot->n_reads + slot->n_writes + slot->n_partial == 0) return NULL;
    ag_storage **storages = slot->many != NULL ? slot->many : slot->inline_storages;
    int target = slot->n_writes + slot->n_partial > 0 ? slot->n_reads : 0;
    return storages[target]->name;
}

/* -- memory ------------------------------------------------------------------------------------------------------- */

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
