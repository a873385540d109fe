/* A sum over several GPUs in their plans: the issuing threads of all GPUs meet, and the last one to arrive enqueues it.
 *
 * A thread that comes with an error (its operation was aborted, or reads what failed) enqueues nothing; then no GPU
 * does, and all of them get that error. So no kernel of NCCL ever waits for one that does not come for such a reason.
 * The sums of a device made of devices are enqueued on all its streams in one step, so their order is the same on
 * each, and threads that wait here wait for no thread that waits for them. Not here: NCCL (nccl.c). */
#include <stdlib.h>
#include <time.h>

#include "state.h"

#define LOOK_NS 50000    /* how long a thread polls for the others before it sleeps */
#define STOP_NS 10000000 /* how often a sleeping thread checks whether the process ends */

struct ag_cuda_sum {
    atomic_int refs;
    ag_cuda_group *group;
    size_t count;
    int type;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    atomic_uint turn;       /* how often all have met; changed under the lock */
    size_t n_here, n_leave; /* of this turn; of the turn that is over, those that have not looked at `error` */
    ag_error *error;
    bool given_up; /* one of the threads has ended */
    ag_cuda_part parts[];
};

ag_cuda_sum *ag_cuda_sum_new(ag_cuda_group *group, size_t count, int type)
{
    size_t n = ag_cuda_group_size(group);
    ag_cuda_sum *sum = calloc(1, sizeof *sum + n * sizeof *sum->parts);
    if (sum == NULL) return NULL;
    atomic_init(&sum->refs, 1);
    sum->group = ag_cuda_group_ref(group);
    sum->count = count;
    sum->type = type;
    pthread_mutex_init(&sum->lock, NULL);
    pthread_cond_init(&sum->moved, NULL);
    return sum;
}

ag_cuda_sum *ag_cuda_sum_ref(ag_cuda_sum *sum)
{
    atomic_fetch_add_explicit(&sum->refs, 1, memory_order_relaxed);
    return sum;
}

void ag_cuda_sum_unref(ag_cuda_sum *sum)
{
    if (sum == NULL || atomic_fetch_sub_explicit(&sum->refs, 1, memory_order_acq_rel) != 1) return;
    pthread_cond_destroy(&sum->moved);
    pthread_mutex_destroy(&sum->lock);
    ag_error_unref(sum->error);
    ag_cuda_group_unref(sum->group);
    free(sum);
}

/* Under the lock: until another thread moves something, or for a while; false: this thread is to end. */
static bool wait_a_while(ag_cuda_sum *sum, const ag_cuda_queue *q)
{
    if (atomic_load(&q->stop)) sum->given_up = true;
    if (sum->given_up) {
        pthread_cond_broadcast(&sum->moved);
        return false;
    }
    const struct timespec at = ag_wall_after(STOP_NS);
    (void)pthread_cond_timedwait(&sum->moved, &sum->lock, &at);
    return true;
}

static ag_error *end_error(const ag_cuda_queue *q)
{
    return ag_error_new(AG_DEVICE_ERROR, q->name, "all_reduce", NULL, "the process ends");
}

ag_error *ag_cuda_sum_meet(ag_cuda_sum *sum, size_t rank, const ag_cuda_part *part, ag_cuda_queue *q, ag_error *error)
{
    pthread_mutex_lock(&sum->lock);
    bool here = !sum->given_up;
    while (here && sum->n_leave > 0) here = wait_a_while(sum, q); /* of the previous turn */
    if (!here) {
        pthread_mutex_unlock(&sum->lock);
        return end_error(q);
    }
    unsigned turn = atomic_load(&sum->turn);
    sum->parts[rank] = *part;
    if (error != NULL && sum->error == NULL) sum->error = ag_error_ref(error);
    if (++sum->n_here == ag_cuda_group_size(sum->group)) {
        if (sum->error == NULL) sum->error = ag_cuda_group_sum(sum->group, sum->parts, sum->count, sum->type);
        sum->n_leave = sum->n_here;
        sum->n_here = 0;
        atomic_store(&sum->turn, turn + 1);
        pthread_cond_broadcast(&sum->moved);
    } else {
        pthread_mutex_unlock(&sum->lock);
        for (uint64_t until = ag_now() + LOOK_NS; atomic_load(&sum->turn) == turn && ag_now() < until;) ag_pause();
        pthread_mutex_lock(&sum->lock);
        while (here && atomic_load(&sum->turn) == turn) here = wait_a_while(sum, q);
    }
    ag_error *found = here ? ag_error_ref(sum->error) : end_error(q);
    if (here && --sum->n_leave == 0) {
        ag_error_unref(sum->error);
        sum->error = NULL;
        pthread_cond_broadcast(&sum->moved);
    }
    pthread_mutex_unlock(&sum->lock);
    return found;
}

void ag_cuda_issue_sum(ag_cuda_issue *issue, ag_slot *slot, ag_cuda_sum *sum, size_t rank, const ag_cuda_part *part)
{
    ag_cuda_queue *q = issue->queue;
    ag_flight *flight = issue->flight;
    int code = flight->error == NULL ? ag_cuda_open(q, &issue->call) : AG_CU_OK;
    if (code != AG_CU_OK)
        flight->error = ag_cuda_error(q->device, code, issue->call, slot->operation, ag_cuda_tensor_of(slot));
    ag_cuda_part mine = {.send = part->send, .recv = part->recv, .stream = q->cuda};
    ag_error *found = ag_cuda_sum_meet(sum, rank, &mine, q, flight->error);
    issue->ran = flight->error == NULL && q->cuda != NULL; /* also if NCCL failed midway: some of it may run */
    flight->group = sum->group;
    if (flight->error != NULL || found == NULL) {
        ag_error_unref(found);
        return;
    }
    flight->error = found;
    ag_error *broken = ag_cuda_group_error(sum->group);
    slot->derived = found != broken || rank > 0; /* told once, by the GPU that failed or by the first one */
    ag_error_unref(broken);
}
