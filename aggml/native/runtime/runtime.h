/* The runtime in C: streams of ordered work, the thread pool that carries it out, plans.
 *
 * Here: every type and function that more than one file of runtime/ (or of binding/) uses. Errors, storages and
 * notifiers are in base.h. No Python. Rules:
 * - a stream is in order; `completed` alone tells whether a ticket is done;
 * - a worker never blocks for another stream: it parks the stream and takes other work;
 * - objects are reference-counted; a stream keeps everything that is handed to it until it is done. */
#ifndef AG_RUNTIME_H
#define AG_RUNTIME_H

#include "base.h"
#include "wait.h"

typedef struct ag_plan ag_plan;
typedef struct ag_pool ag_pool;
typedef struct ag_stream ag_stream;
struct ag_worker;

/* -- plans ---------------------------------------------------------------------------------------------------- */

typedef struct ag_step {
    agk_step_fn *run;
    const agk_node *node;
    uint32_t n_chunks;
    int32_t writes_leaf; /* index into partial + full storages of a leaf that this node writes, or -1 */
    uint32_t place;      /* used while the plan is made (plan_order.c) */
    /* so many steps, counted from this one, run together, the chunks of all of them on any threads; 0 means 1 */
    uint32_t n_together;
    /* pieces of some 10 us that threads can share from here to the end; 0: unknown, as their time is unknown */
    uint32_t ahead;
    /* index of the first later step, outside this phase, that has weights to prefetch; 0: none comes soon */
    uint32_t fetches;
    const char *weights; /* the weights that it reads once, chunk after chunk; NULL: none */
    size_t chunk_bytes;  /* bytes of weights for each chunk */
} ag_step;

typedef struct ag_file_part {
    uintptr_t first;
    size_t size;
    ag_backing backing;
} ag_file_part;

struct ag_plan {
    atomic_int refs;
    uint32_t cpu;
    agk_node **nodes;
    char (*names)[AG_NAME];
    size_t n_nodes, cap_nodes;
    ag_step *steps;
    size_t n_steps, cap_steps;
    size_t scratch_size; /* bytes for each thread */
    size_t work_base;    /* offset in the arena of the area that a node's steps share */
    size_t work_size;
    /* estimated ns on one thread: tells whether a hand-over would cost more than the work */
    uint64_t cost;
    struct agk_packed **packed; /* held until the plan is freed */
    size_t n_packed, cap_packed;
    /* used while the plan is made: the node whose columns the work memory holds (agk_lowering) */
    const agk_node *columns;
    struct ag_order *order; /* used while the plan is made: the places of steps; NULL once it is sealed */
    ag_storage **reads, **writes, **partial;
    size_t n_reads, n_writes, n_partial;
    ag_file_part *file_parts; /* the parts that steps read of memory that may be a file */
    size_t n_file_parts;
    void *device; /* instead of steps: the object that a device made from the graph; NULL for the CPU */
    void (*drop_device)(void *device);
};

ag_plan *ag_plan_new(uint32_t cpu, size_t work_base);
ag_plan *ag_plan_ref(ag_plan *plan);
void ag_plan_unref(ag_plan *plan);
/* Lowers one more node; `weights`: the storage of src[0], if it may be packed. On failure nothing is added, and
 * `message` (AGK_MESSAGE bytes) says why. */
agk_status ag_plan_add(ag_plan *plan, const agk_node *node, const char *name, int writes_leaf, ag_storage *weights,
                       char *message);
/* Declares what the plan reads, writes in full and writes in part. Called once; false: no memory. */
bool ag_plan_seal(ag_plan *plan, ag_storage **reads, size_t n_reads, ag_storage **writes, size_t n_writes,
                  ag_storage **partial, size_t n_partial);
size_t ag_plan_arena_size(const ag_plan *plan);
uint64_t ag_node_cost(const agk_node *node); /* estimated ns on one thread */
/* The work that threads other than workers have carried out so far, in estimated ns: submitting threads, and the
 * threads of the timers. */
uint64_t ag_inline_work(bool timer);
ag_error *ag_plan_error(const ag_plan *plan, size_t step, agk_status status, const char *device, const char *message);

/* -- strided copies ------------------------------------------------------------------------------------------- */

typedef struct ag_copy {
    uint8_t *dst;
    const uint8_t *src;
    int64_t ne[4];
    int64_t dst_nb[4], src_nb[4];
    size_t item; /* bytes of one element; dimension 0 counts elements */
} ag_copy;

void ag_copy_simplify(ag_copy *copy); /* merges dimensions that are contiguous on both sides */
void ag_copy_run(const ag_copy *copy);

static inline size_t ag_copy_size(const ag_copy *copy) /* bytes */
{
    return copy->item * (size_t)(copy->ne[0] * copy->ne[1] * copy->ne[2] * copy->ne[3]);
}

/* -- streams -------------------------------------------------------------------------------------------------- */

typedef enum ag_kind {
    AG_KIND_NOP, /* a mark; with `writes` it clears poison: the bytes that are there are declared good */
    AG_KIND_COPY,
    AG_KIND_EXPERTS,
    AG_KIND_FILL,
    AG_KIND_PLAN,
    AG_KIND_DELAY,
    AG_KIND_WAIT,
    AG_KIND_FAIL,
    AG_KIND_CALL
} ag_kind;

#define AG_INLINE_STORAGES 4

/* What the last run named of a stack of matrices, so that the next run can copy it before the ids are known. The
 * operations of one stream alone use `ids`. */
typedef struct ag_expert_history {
    atomic_bool noted; /* the ids of this run are known: nothing more is guessed */
    int64_t n;
    int32_t *ids; /* -1: none, or it was not copied by this run's guesses */
} ag_expert_history;

enum { AG_EXPERTS_NAMED = -1, AG_EXPERTS_NOTE = -2 };

/* Of `n` matrices of `size` bytes each, one behind the other: those that are named in `ids`, a 2-D tensor of int32.
 * With a history, `guess` is the number of one of its ids, whose matrix is copied, or one of the values above. */
typedef struct ag_experts {
    uint8_t *dst;
    const uint8_t *src;
    size_t size;
    int64_t n;
    const uint8_t *ids;
    int64_t ids_ne[2], ids_nb[2];
    uint64_t latency; /* ns; together with ns_per_byte, the time that a simulated device takes */
    double ns_per_byte;
    uint8_t *used;              /* one flag for each matrix; valid from ag_experts_look on */
    ag_expert_history *history; /* borrowed, it lives as long as the slot; NULL: none */
    int64_t guess;
} ag_experts;

/* One queued operation; it is an entry in a block of its stream's ring. */
typedef struct ag_slot {
    ag_kind kind;
    atomic_bool abort;
    bool derived;     /* it failed because it read what another failure had poisoned */
    bool may_be_file; /* for a copy: the array that is read may be a file; it is not a storage */
    uint16_t n_reads, n_writes, n_partial;
    ag_storage *inline_storages[AG_INLINE_STORAGES]; /* reads, then full writes, then partial writes */
    ag_storage **many;                               /* used instead if there are more of them; owned */
    const char *operation;                           /* static text for errors */
    uint64_t pace;                      /* the least ns that a copy, a fill or a plan takes; 0: no such limit */
    uint64_t moved;                     /* bytes that it copied or filled; set when it is done */
    uint64_t submitted;                 /* ns; set before it is published */
    atomic_uint_fast64_t started, done; /* ns; 0: this point is not reached */
    _Atomic(ag_error *) error;
    union {
        ag_copy copy;
        ag_experts experts;
        struct {
            uint8_t *dst;
            size_t size;
            int value;
        } fill;
        struct {
            ag_plan *plan;
            uintptr_t arena;
            /* for the thread that runs the steps that are calls; borrowed, it lives as long as the slot */
            void *user;
        } plan;
        struct {
            uint64_t ns;
        } delay;
        struct {
            /* for the thread that makes the call: the function to call; borrowed, it lives as long as the slot */
            void *user;
        } call;
        struct {
            ag_stream *stream;
            uint64_t ticket; /* AG_TAIL: everything that is queued there at submission */
        } wait;
        struct {
            ag_error *error;
        } fail;
    } u;
} ag_slot;

#define AG_TAIL UINT64_MAX
#define AG_BLOCK_SLOTS 32

typedef struct ag_block {
    atomic_int refs; /* one for the ring, and one for each handle that points into it */
    uint64_t base;   /* ticket of slots[0] */
    _Atomic(struct ag_block *) next;
    ag_slot slots[AG_BLOCK_SLOTS];
} ag_block;

typedef struct ag_executor {
    /* The stream has work and no thread runs it: call ag_stream_run(stream) on some thread soon. */
    void (*ready)(struct ag_executor *executor, ag_stream *stream);
} ag_executor;

/* A device that receives operations before earlier ones are done (a CUDA stream). Its `ready` makes one thread call
 * ag_stream_run_ahead. That thread is told what to issue; another thread settles the operations, in the order of
 * tickets. */
typedef struct ag_ahead {
    ag_executor executor;
    /* Begins the operation. Begins nothing if there already is an `error` (a reference), or if the device has
     * nothing to do for it. ag_stream_settle follows in any case. The slot may be freed when this returns. */
    void (*issue)(struct ag_ahead *ahead, ag_stream *stream, ag_slot *slot, uint64_t ticket, ag_error *error);
    void (*drain)(struct ag_ahead *ahead); /* waits until everything that was issued is settled */
    /* waits until one more plan may be issued: the few that are issued cannot be aborted */
    void (*admit)(struct ag_ahead *ahead);
    /* Makes the device itself wait until the other stream's ticket is done, so that later operations may be issued
     * now. The next call is `issue` of the wait, which is settled no sooner than that ticket. False: this thread has
     * to wait. NULL: it always has to. */
    bool (*follow)(struct ag_ahead *ahead, ag_stream *other, uint64_t ticket);
    void (*gone)(struct ag_ahead *ahead); /* the stream is about to be freed */
} ag_ahead;

ag_stream *ag_stream_new(const char *name, ag_pool *pool, int n_threads);
ag_stream *ag_stream_new_ahead(const char *name, ag_ahead *ahead);
ag_stream *ag_stream_ref(ag_stream *stream);
void ag_stream_unref(ag_stream *stream);
ag_ahead *ag_stream_ahead(const ag_stream *stream); /* NULL: the stream belongs to a pool */
/* it is held, or waits for a stream, a timer or a call: nothing is begun now */
bool ag_stream_stands(ag_stream *stream);

/* A batch for one stream. Slots are moved in. On success `blocks[i]` (a reference) and `tickets[i]` tell where they
 * are. */
typedef struct ag_batch {
    ag_stream *stream;
    ag_slot *slots;
    size_t n;
    ag_block **blocks;
    uint64_t *tickets;
} ag_batch;

typedef enum ag_submit_status {
    AG_SUBMIT_OK,
    AG_SUBMIT_CLOSED,
    AG_SUBMIT_FORKED,
    AG_SUBMIT_NO_MEMORY,
    AG_SUBMIT_LOST,
    AG_SUBMIT_MOVED /* `ag_submit_if` alone */
} ag_submit_status;

/* Enqueues several batches as one step: no operation of another thread comes between them. All or nothing. */
ag_submit_status ag_submit(ag_batch *batches, size_t n);
/* The same, but only if these tickets are still the last ones of these streams; else nothing is enqueued. So a
 * caller that decided what to wait for by looking at the streams knows that it saw everything. */
typedef struct ag_seen {
    ag_stream *stream;
    uint64_t ticket;
} ag_seen;
ag_submit_status ag_submit_if(ag_batch *batches, size_t n, const ag_seen *seen, size_t n_seen);

uint64_t ag_stream_submitted(const ag_stream *stream);
uint64_t ag_stream_completed(const ag_stream *stream);
int ag_stream_n_threads(const ag_stream *stream);
void ag_stream_set_n_threads(ag_stream *stream, int n_threads);
const char *ag_stream_name(const ag_stream *stream);
bool ag_stream_alive(const ag_stream *stream); /* made by this process, not inherited from the parent of a fork */
bool ag_stream_closed(const ag_stream *stream);
ag_error *ag_stream_lost(const ag_stream *stream); /* borrowed, or NULL */

void ag_stream_close(ag_stream *stream); /* refuses new work; queued work goes on */
void ag_stream_hold(ag_stream *stream);  /* no operation starts until it was released as often as it was held */
bool ag_stream_release(ag_stream *stream);
/* everything that is queued or comes later fails with this error */
void ag_stream_lose(ag_stream *stream, ag_error *error);
void ag_stream_abort(ag_stream *stream, ag_block *block, uint64_t ticket);
void ag_stream_abort_all(ag_stream *stream); /* aborts the plans, delays and calls that are queued now */
void ag_streams_end(void);                   /* closes all streams of this process and aborts their work */
bool ag_stream_aborting(const ag_stream *stream, const ag_slot *slot); /* called by the thread that runs the slot */

/* Whether one of `starts` (their `other` and ticket) can only be done after `target` has gone on, because of queued
 * operations and of functions in Python that block: `stream` goes on when `other` has reached the ticket. */
typedef struct ag_edge {
    ag_stream *stream, *other;
    uint64_t ticket;
} ag_edge;
bool ag_stream_needs(const ag_edge *starts, size_t n_starts, const ag_edge *blocked, size_t n_blocked,
                     const ag_stream *target);

/* The failures that nobody saw: moves up to `n` references out and marks them seen. */
size_t ag_stream_take_failures(ag_stream *stream, ag_error **out, size_t n);

/* Python calls: waits for the next one (false: none came within timeout_ns, or the stream is finished). */
bool ag_stream_next_call(ag_stream *stream, uint64_t timeout_ns, uint64_t *ticket);
/* For the thread that took a call: its user, and the step of the plan if it is one; false: the call is an operation
 * of its own. */
bool ag_stream_call_step(ag_stream *stream, size_t *step, void **user);
void ag_stream_finish_call(ag_stream *stream, ag_error *error); /* NULL: success; takes over the reference */

/* For executors: runs the stream on this thread until it has nothing to do or parks. */
void ag_stream_run(ag_stream *stream, struct ag_worker *worker); /* worker NULL: this is the submitting thread */
bool ag_slot_copy(ag_slot *to, const ag_slot *from); /* the copy is not submitted either; false: no memory */
void ag_stream_run_ahead(ag_stream *stream);         /* the same for an ag_ahead, called by its one thread */
/* The operation of the next ticket has ended; takes over the reference to `error`. `ran`: the device worked on it.
 * If it then failed, or had read something that failed, what it writes in part has changed. */
void ag_stream_settle(ag_stream *stream, uint64_t ticket, ag_error *error, bool ran);
void ag_slot_drop(ag_slot *slot); /* releases what the slot holds; for slots that were not submitted */
void ag_block_unref(ag_block *block);

/* -- timers: one thread for all delays of a bank --------------------------------------------------------------- */

void ag_timer_stop(void);
uint64_t ag_timer_ended(int bank); /* delays that the timers of a bank have ended, for tests */
/* comparisons of entries in the heap of timers: the work that was done, for tests */
uint64_t ag_timer_compared(void);

/* -- thread pool ---------------------------------------------------------------------------------------------- */

typedef struct ag_pool_params {
    int n_threads;
    int spin_us;  /* how long an idle worker looks for work before it sleeps */
    int priority; /* ggml's: -1 low, 0 normal, 1 medium, 2 high, 3 realtime */
    bool strict;  /* worker j runs on the j-th cpu of the mask; else all run on the whole mask */
    bool has_mask;
    uint8_t mask[512];
} ag_pool_params;

typedef struct ag_worker {
    ag_pool *pool;
    int index;
    int bank; /* the bank of memory next to which it works */
    pthread_t thread;
    pthread_cond_t wake; /* used with its bank's lock */
    bool asleep;         /* guarded by that lock; false: it was woken */
    struct ag_worker *asleep_next, *asleep_before;
    atomic_uint woke, claimed,
        /* counters for tests: workers that it woke, chunks that it took, chunks of other ranges among them */
        strayed;
    atomic_int cpu;      /* the core where it last went to sleep; -1: unknown */
    int sent_from;       /* a core that it was told to avoid while it wakes, or -1 */
    uint64_t sent;       /* ns: the time when it was told so */
    unsigned sent_after; /* how many runs of plans had ended then */
    void *scratch;
    size_t scratch_size;
    /* ns: from when on its time is not counted yet, 0: nobody else waits; when it looks whose turn it is */
    uint64_t since, turn_end;
    char message[AGK_MESSAGE];
} ag_worker;

ag_pool *ag_pool_new(const ag_pool_params *params); /* NULL: a thread could not be started */
ag_pool *ag_pool_ref(ag_pool *pool);
void ag_pool_unref(ag_pool *pool);
/* `widen`: streams of 0 threads, which use `width` threads, use that many from then on. */
bool ag_pool_grow(ag_pool *pool, int n_threads, bool widen);
int ag_pool_width(const ag_pool *pool);
int ag_pool_n_threads(const ag_pool *pool);
/* Joins the workers, unless streams have work left: queued work belongs to the pool, even if nothing else holds the
 * stream any more. False: there is such a stream; `name` (AG_NAME bytes) and `pending` describe one. */
bool ag_pool_close(ag_pool *pool, char *name, uint64_t *pending);
/* joins the workers; work that has not begun stays undone, and plans under way stop early */
void ag_pool_stop(ag_pool *pool);
void ag_pools_stop(void);          /* all pools of this process */
void ag_pool_pause(ag_pool *pool); /* idle workers sleep immediately; the next work that comes ends the pause */
void ag_pool_resume(ag_pool *pool);
bool ag_pool_paused(const ag_pool *pool);
int ag_pool_sleepers(const ag_pool *pool); /* workers that sleep at this moment */
ag_executor *ag_pool_executor(ag_pool *pool);
const ag_worker *ag_pool_worker(const ag_pool *pool, int index); /* for tests */
extern _Atomic(void (*)(void)) ag_on_idle; /* set by the binding; a worker calls it before it sleeps */
int ag_usable_cpus(void); /* threads of a pool by default: according to affinity, kinds of cores and cgroup quota */

/* A plan runs from `*step` on. ELSEWHERE: other threads go on with it, and the thread that finishes it continues the
 * stream. In the last two results `*step` says where it goes on. */
typedef enum ag_run_result {
    AG_RUN_FINISHED,
    AG_RUN_ELSEWHERE,
    AG_RUN_YIELDED, /* to other streams */
    AG_RUN_CALLS    /* `*step` has to run on the thread that serves calls */
} ag_run_result;
/* Called by the thread that finished a plan in the pool's loop: completes the operation and goes on with the stream. */
void ag_stream_finish_plan(ag_stream *stream, ag_worker *worker, ag_error *error);
void ag_stream_yield_plan(ag_stream *stream, size_t step); /* the plan will be resumed at this step */
/* the plan will be resumed behind this step, once the function was called */
void ag_stream_call_of_plan(ag_stream *stream, size_t step);
/* A step failed: a leaf that it had begun to write holds neither the old nor the new value. */
void ag_plan_poison_leaf(const ag_plan *plan, size_t step, agk_status status, ag_error *error);

#endif
