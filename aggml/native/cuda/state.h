/* Shared by the files of cuda/, in layers: devices; what is in flight, copies, queues; plans. */
#ifndef AG_CUDA_STATE_H
#define AG_CUDA_STATE_H

#include "blas.h"
#include "driver.h"
#include "nccl.h"
#include "streams.h"
#include "runtime/internal.h"

typedef struct ag_cuda_queue ag_cuda_queue;
typedef struct ag_cuda_copier ag_cuda_copier;

struct ag_cuda_device {
    atomic_int refs;
    unsigned generation;
    int ordinal;
    char name[AG_NAME];
    pthread_mutex_t lock;   /* held briefly */
    pthread_mutex_t making; /* held as long as it takes to make a context; only threads that may wait take it */
    atomic_bool made;       /* the context, the pool and the memory stream */
    void *context, *pool;
    void *memory_stream; /* only allocates and frees memory, so it is always idle soon */
    _Atomic(ag_error *) lost;
    ag_cuda_queue *queues; /* that have a stream */
    void **trash;          /* graphs that are to be destroyed, by a thread that may wait */
    size_t n_trash, cap_trash;
    void **memory_trash; /* likewise memory of the device */
    size_t n_memory_trash, cap_memory_trash;
    uint64_t peers; /* ordinals that may reach the pool; this and the links under AG_LOCK_CUDA */
    ag_cuda_device *next, **link;
    ag_cuda_blas *blas;               /* NULL: none; set before there is a plan */
    _Atomic(ag_cuda_copier *) copier; /* NULL: the driver makes strided copies; set once */
};

#define AG_CUDA_COPY_KERNELS 7

/* Kernels for strided copies (strided.c). */
struct ag_cuda_copier {
    void *image;
    pthread_mutex_t lock; /* protects the members below: a device has several issuing threads */
    void *library;
    void *kernels[AG_CUDA_COPY_KERNELS];
    bool useless; /* the kernels could not be loaded: the driver makes the copies */
};

/* False in the child of a fork, which no context of the driver survives: nothing of a device is touched there, its
 * locks least of all. */
static inline bool ag_cuda_here(const ag_cuda_device *device)
{
    return device->generation == atomic_load(&ag_generation);
}

/* Issued work whose end the waiting thread waits for; FIFO per queue. */
typedef struct ag_flight {
    uint64_t ticket;   /* 0: a piece of an operation whose last piece has the ticket */
    ag_stream *stream; /* a reference, with a ticket */
    ag_slot *slot;     /* in the stream's ring until it is settled */
    void *event;       /* NULL: nothing was issued to the device */
    ag_error *error;
    bool ran;
    bool plan;                            /* one of the plans in flight */
    bool follow;                          /* settled once the stream that its slot waits for has come so far */
    uint64_t ring_end;                    /* how far the staging ring is free once this flight is settled */
    ag_copy out;                          /* from the ring to host memory, if item is not 0 */
    ag_cuda_group *group;                 /* it is a sum over these GPUs; the slot keeps the group; NULL: it is none */
    const uint8_t *faults;                /* faults that a plan's kernels reported, in the ring */
    const uint8_t *host_first, *host_end; /* bytes of the host that a copy writes; NULL: none */
} ag_flight;

#define AG_CUDA_RING ((size_t)8 << 20)    /* pinned bytes of a queue that stage pageable memory */
#define AG_CUDA_PIECE ((size_t)1 << 20)   /* bytes staged at a time; several pieces are in flight */
#define AG_CUDA_SCRATCH ((size_t)2 << 20) /* scratch is rounded up to this: pages of a device */
#define AG_CUDA_FLIGHTS 256               /* operations issued and not settled */
#define AG_CUDA_PLANS 2  /* plans among them; few, since an abort only affects plans not yet launched */
#define AG_CUDA_FAULT 32 /* bytes: four int64, see devices/cuda/launch.py */

struct ag_cuda_queue {
    ag_ahead ahead;  /* first: the stream knows the queue by it */
    atomic_int refs; /* the stream, two threads */
    unsigned generation;
    ag_cuda_device *device;
    ag_stream *stream;           /* under the device's lock; NULL once gone */
    ag_cuda_queue *next, **link; /* among the device's */
    ag_cuda_queue *next_all, **link_all;
    char name[AG_NAME];

    pthread_mutex_t lock;
    pthread_cond_t to_issue, to_settle, settled;
    atomic_bool ready, stop;
    atomic_int n_flights; /* changed under the lock */
    size_t first;
    int n_plans, n_threads;
    int n_follows; /* of the flights: waits for other queues that the device keeps */
    ag_flight flights[AG_CUDA_FLIGHTS];
    void *events[AG_CUDA_FLIGHTS + 1]; /* not in use; one more than fits is recorded while it waits for room */
    size_t n_events;
    uint64_t ring_tail;
    ag_error *left; /* the failure of a piece of the operation that is being settled */

    /* the issuing thread's */
    void *cuda;     /* the driver's stream */
    bool following; /* the device waits for another queue; the flight of that wait comes next */
    uint8_t *ring;
    uint64_t ring_head;
    uint64_t scratch; /* of the plans, one after the other; 0: none yet */
    size_t scratch_size;
};

/* device.c */
bool ag_cuda_sticky(int code); /* the context is no longer usable */
ag_error *ag_cuda_error(ag_cuda_device *device, int code, const char *call, const char *operation, const char *tensor);
void ag_cuda_lose(ag_cuda_device *device, ag_error *error);
int ag_cuda_context(ag_cuda_device *device); /* makes it if need be, with pool and memory stream; sets it current */
void ag_cuda_sweep(
    ag_cuda_device *device); /* destroys buffers and modules that were thrown away; the context is current */
void ag_cuda_throw_away(ag_cuda_device *device, void *graph);
void ag_cuda_reach(int one, int two); /* lets two GPUs reach the pools of each other, if they can */

/* chores.c */
/* A thread that may wait makes the call `run(object, host)`. False: no thread will. */
bool ag_cuda_chores_post(void (*run)(void *object, void *host), void *object, void *host);
void ag_cuda_chores_begin(void);
void ag_cuda_chores_wait(void); /* waits until all chores posted so far are done */
void ag_cuda_chores_end(const struct timespec *until);

/* hands.c: pieces of a run in the order of the run; each is gathered once `ag_cuda_await_piece` is back. */
typedef struct ag_cuda_piece {
    ag_copy near, far; /* from the host to the ring; from the ring to the device */
    uint64_t ring_end;
    bool there;
    struct ag_cuda_piece *next;
} ag_cuda_piece;

void ag_cuda_gather(ag_cuda_piece *pieces, size_t n);
void ag_cuda_await_piece(ag_cuda_piece *piece);
void ag_cuda_hands_end(const struct timespec *until);

/* flights.c */
int ag_cuda_open(ag_cuda_queue *queue, const char **call); /* makes the driver's stream, if there is none */
void ag_cuda_push(ag_cuda_queue *queue, const ag_flight *flight);
/* Records an event behind what was issued and queues `flight`; 0, or the driver's code, and nothing is queued. */
int ag_cuda_fly(ag_cuda_queue *queue, ag_flight flight);
void ag_cuda_drain(ag_cuda_queue *queue);
/* Before this thread itself reads memory of the host: what other queues write there has to have come. */
void ag_cuda_catch_up(ag_cuda_queue *queue);
/* The name of what an operation concerns, for its error; NULL: nothing. */
const char *ag_cuda_tensor_of(ag_slot *slot);
uint8_t *ag_cuda_ring_take(ag_cuda_queue *queue, size_t size, uint64_t *end, int *code); /* waits for room */
/* Makes the queue's scratch hold `size` bytes; to grow, it waits for all launches. The driver may take long. */
ag_error *ag_cuda_scratch(ag_cuda_queue *queue, size_t size);

/* follow.c: ag_ahead.follow; and what settles such a wait. */
bool ag_cuda_follow(ag_ahead *ahead, ag_stream *other, uint64_t ticket);
void ag_cuda_end_follow(const ag_slot *slot);

/* copy.c: issue, up to the flight that the caller adds. `call` tells which entry failed. */
typedef struct ag_cuda_issue {
    ag_cuda_queue *queue;
    const ag_slot *slot;
    ag_flight *flight;
    const char *call;
    bool ran;
} ag_cuda_issue;

typedef struct ag_cuda_side {
    bool device;
    bool pinned; /* host memory that the driver copies from and to by itself */
    int ordinal;
} ag_cuda_side;

/* The range of bytes that one side of a copy touches: from its lowest byte to just past its highest. */
static inline void ag_cuda_extent(const uint8_t *base, const ag_copy *c, const int64_t *nb, const uint8_t **first,
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

int ag_cuda_issue_copy(ag_cuda_issue *issue, const ag_copy *copy);
int ag_cuda_issue_fill(ag_cuda_issue *issue);
/* `last`: the piece that comes last has the caller's flight. */
int ag_cuda_copy_between(ag_cuda_issue *issue, const ag_copy *copy, ag_cuda_side to, ag_cuda_side from, bool last);
int ag_cuda_look(ag_cuda_issue *issue, const uint8_t *base, const ag_copy *copy, const int64_t *nb, ag_cuda_side *out);
/* strided.c */
bool ag_cuda_is_scattered(const ag_copy *copy); /* the driver would have many calls for it, or many short rows */
/* A copy that kernels reach on both sides, if it is scattered and there are kernels for it; false: nothing is done. */
bool ag_cuda_copy_by_kernel(ag_cuda_issue *issue, const ag_copy *copy, int *code);
/* experts.c */
int ag_cuda_issue_experts(ag_cuda_issue *issue, ag_slot *slot, ag_error **error);
/* sum.c: the flight gets the outcome; waits for the threads of all GPUs of the sum, also with an error. */
void ag_cuda_issue_sum(ag_cuda_issue *issue, ag_slot *slot, ag_cuda_sum *sum, size_t rank, const ag_cuda_part *part);
/* The error of whoever met with one, or of NCCL (a reference); NULL: the sum is enqueued. `error` is not taken. */
ag_error *ag_cuda_sum_meet(ag_cuda_sum *sum, size_t rank, const ag_cuda_part *part, ag_cuda_queue *q, ag_error *error);
/* queue.c: what it asks of plans, which are plan.c's. */
typedef struct ag_cuda_plan_calls {
    void (*drop)(void *device); /* by which a plan is known to be one of these */
    bool (*is_sum)(const ag_plan *plan);
    int (*issue)(ag_cuda_issue *issue, ag_error **error);
    void (*issue_sum)(ag_cuda_issue *issue, ag_slot *slot);
    /* The error that a run's kernels reported, or NULL; poisons what was written in part. By the waiting thread. */
    ag_error *(*fault)(ag_plan *plan, const uint8_t *faults, const char *device);
} ag_cuda_plan_calls;
void ag_cuda_set_plan_calls(const ag_cuda_plan_calls *calls); /* before there is a plan */

#define AG_CU(issue, entry, ...) ((issue)->call = #entry, ag_cu.entry(__VA_ARGS__))

#endif
