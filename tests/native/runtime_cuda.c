/* Streams of CUDA devices under load: submissions, waits across streams and to the CPU, aborts, holds, calls of the
 * driver that fail, devices that are lost, streams that come and go, on a driver of a few lines whose every operation
 * takes a random time. All is done in the end, what succeeded is whole, and no thread or event of the driver is left.
 *
 * Not here: kernels and graphs (tests/devices/cuda). */
#include <poll.h>
#include <pthread.h>

#include "cuda/driver.h"
#include "cuda/streams.h"
#include "rig.h"

/* -- the driver: a thread for each of its streams ----------------------------------------------------------------- */

enum { INVALID = 1, ILLEGAL_ADDRESS = 700 };

typedef struct event {
    atomic_int refs; /* its owner, and each record of it that is queued */
    atomic_uint_fast64_t recorded, done;
} event;

static void event_unref(event *e)
{
    if (atomic_fetch_sub(&e->refs, 1) == 1) free(e);
}

typedef struct work {
    event *event; /* done up to `ticket`; NULL: a copy, or a fill */
    uint64_t ticket;
    bool waits; /* for that ticket, of a record in another stream */
    uint8_t *dst;
    const uint8_t *src; /* NULL: a fill */
    int value;
    size_t size;
} work;

#define ROOM 64

typedef struct driver_stream {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    work queue[ROOM];
    size_t first, n;
    bool stop;
} driver_stream;

static atomic_int live_streams, live_events, live_rings, sticky, trouble; /* trouble: one call in so many fails */
static atomic_uint fills, stream_waits;
static pthread_rwlock_t breaking = PTHREAD_RWLOCK_INITIALIZER; /* a device that is lost touches no memory any more */
static _Thread_local rng luck;
static uint8_t device_memory[1 << 22], pinned_memory[1 << 20];

static int call(void)
{
    if (luck.state == 0) luck = rng_new((uint64_t)(uintptr_t)&luck);
    int one_in = atomic_load(&trouble);
    if (atomic_load(&sticky)) return ILLEGAL_ADDRESS;
    return one_in && rng_below(&luck, (uint32_t)one_in) == 0 ? INVALID : AG_CU_OK;
}

static void *run_driver_stream(void *argument)
{
    driver_stream *s = argument;
    rng r = rng_new((uint64_t)(uintptr_t)s);
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->n == 0 && !s->stop) pthread_cond_wait(&s->changed, &s->lock);
        if (s->n == 0) break;
        work w = s->queue[s->first];
        pthread_mutex_unlock(&s->lock);
        if (rng_below(&r, 4) == 0) check_nap((long)rng_below(&r, 60));
        while (w.waits && atomic_load(&w.event->done) < w.ticket && !atomic_load(&sticky)) check_nap(10);
        pthread_rwlock_rdlock(&breaking);
        if (w.event != NULL) {
            if (!w.waits) atomic_store(&w.event->done, w.ticket);
            event_unref(w.event);
        } else if (!atomic_load(&sticky) && w.src != NULL) {
            memcpy(w.dst, w.src, w.size);
        } else if (!atomic_load(&sticky)) {
            memset(w.dst, w.value, w.size);
        }
        pthread_rwlock_unlock(&breaking);
        pthread_mutex_lock(&s->lock);
        s->first = (s->first + 1) % ROOM;
        --s->n;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static int enqueue(void *stream, work w)
{
    driver_stream *s = stream;
    int code = call();
    if (code != AG_CU_OK) return code;
    pthread_mutex_lock(&s->lock);
    while (s->n == ROOM) pthread_cond_wait(&s->changed, &s->lock);
    s->queue[(s->first + s->n++) % ROOM] = w;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return AG_CU_OK;
}

static void dry(driver_stream *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->n > 0) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

static int stream_create(void **out, unsigned flags)
{
    (void)flags;
    int code = call();
    if (code != AG_CU_OK) return code;
    driver_stream *s = calloc(1, sizeof *s);
    CHECK(s != NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    CHECK(pthread_create(&s->thread, NULL, run_driver_stream, s) == 0);
    atomic_fetch_add(&live_streams, 1);
    *out = s;
    return AG_CU_OK;
}

static int stream_destroy(void *stream)
{
    driver_stream *s = stream;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
    atomic_fetch_sub(&live_streams, 1);
    return AG_CU_OK;
}

static int stream_synchronize(void *stream)
{
    dry(stream);
    return call();
}

static int event_create(void **out, unsigned flags)
{
    CHECK_EQ(flags, AG_CU_EVENT_BLOCKING_NO_TIMING);
    int code = call();
    if (code != AG_CU_OK) return code;
    event *e = calloc(1, sizeof *e);
    CHECK(e != NULL);
    atomic_init(&e->refs, 1);
    atomic_fetch_add(&live_events, 1);
    *out = e;
    return AG_CU_OK;
}

static int event_destroy(void *e)
{
    event_unref(e);
    atomic_fetch_sub(&live_events, 1);
    return AG_CU_OK;
}

static int event_record(void *e, void *stream)
{
    event *mine = e;
    uint64_t ticket = atomic_fetch_add(&mine->recorded, 1) + 1;
    atomic_fetch_add(&mine->refs, 1);
    int code = enqueue(stream, (work){.event = mine, .ticket = ticket});
    if (code != AG_CU_OK) {
        atomic_fetch_sub(&mine->recorded, 1);
        event_unref(mine);
    }
    return code;
}

static int event_query(void *e)
{
    event *mine = e;
    int code = call();
    if (code != AG_CU_OK) return code;
    return atomic_load(&mine->done) >= atomic_load(&mine->recorded) ? AG_CU_OK : AG_CU_NOT_READY;
}

static int event_synchronize(void *e)
{
    int code;
    while ((code = event_query(e)) == AG_CU_NOT_READY) check_nap(20);
    return code;
}

static int stream_wait_event(void *stream, void *e, unsigned flags)
{
    event *theirs = e;
    CHECK_EQ(flags, 0);
    atomic_fetch_add(&theirs->refs, 1);
    int code = enqueue(stream, (work){.event = theirs, .ticket = atomic_load(&theirs->recorded), .waits = true});
    if (code != AG_CU_OK) event_unref(theirs);
    if (code == AG_CU_OK) atomic_fetch_add(&stream_waits, 1);
    return code;
}

static int up(uint64_t dst, const void *src, size_t n, void *stream)
{
    return enqueue(stream, (work){.dst = (uint8_t *)(uintptr_t)dst, .src = src, .size = n});
}

static int down(void *dst, uint64_t src, size_t n, void *stream)
{
    return enqueue(stream, (work){.dst = dst, .src = (const uint8_t *)(uintptr_t)src, .size = n});
}

static int within(uint64_t dst, uint64_t src, size_t n, void *stream)
{
    return down((void *)(uintptr_t)dst, src, n, stream);
}

static int fill(uint64_t dst, unsigned char value, size_t n, void *stream)
{
    atomic_fetch_add(&fills, 1);
    return enqueue(stream, (work){.dst = (uint8_t *)(uintptr_t)dst, .value = value, .size = n});
}

static bool lies_in(uint64_t address, const uint8_t *memory, size_t size)
{
    uint64_t begin = (uint64_t)(uintptr_t)memory;
    return address >= begin && address < begin + size;
}

static int pointer_attributes(unsigned n, const int *attributes, void **values, uint64_t address)
{
    int code = call();
    CHECK(n == 2 && attributes[0] == AG_CU_POINTER_KIND && attributes[1] == AG_CU_POINTER_DEVICE);
    bool device = lies_in(address, device_memory, sizeof device_memory);
    bool pinned = lies_in(address, pinned_memory, sizeof pinned_memory);
    *(unsigned *)values[0] = device ? AG_CU_DEVICE : pinned ? AG_CU_HOST : 0;
    *(int *)values[1] = 0;
    return code;
}

static int host_alloc(void **out, size_t n, unsigned flags)
{
    (void)flags;
    int code = call();
    if (code != AG_CU_OK) return code;
    *out = malloc(n);
    CHECK(*out != NULL);
    atomic_fetch_add(&live_rings, 1);
    return AG_CU_OK;
}

static int host_free(void *p)
{
    free(p);
    atomic_fetch_sub(&live_rings, 1);
    return AG_CU_OK;
}

static int describe(int code, const char **text)
{
    *text = code == INVALID ? "INVALID" : "ILLEGAL_ADDRESS";
    return AG_CU_OK;
}

static int retain(void **context, int device)
{
    CHECK_EQ(device, 0);
    *context = device_memory;
    return call();
}

static int set_context(void *context)
{
    (void)context;
    return AG_CU_OK;
}

static int get_context(void **context)
{
    *context = NULL;
    return AG_CU_OK;
}

static int pool_create(void **pool, const ag_cu_pool_props *props)
{
    CHECK(props->kind == AG_CU_ALLOCATION_PINNED && props->location.kind == AG_CU_LOCATION_DEVICE);
    *pool = device_memory;
    return call();
}

static int pool_destroy(void *pool)
{
    (void)pool;
    return AG_CU_OK;
}

static int pool_set(void *pool, int attribute, void *value)
{
    CHECK(pool == device_memory && attribute == AG_CU_POOL_RELEASE_THRESHOLD && value != NULL);
    return call();
}

static void set_up_driver(void)
{
    ag_cu = (ag_cu_table){
        .cuGetErrorName = describe,
        .cuGetErrorString = describe,
        .cuDevicePrimaryCtxRetain = retain,
        .cuCtxSetCurrent = set_context,
        .cuCtxGetCurrent = get_context,
        .cuMemPoolCreate = pool_create,
        .cuMemPoolDestroy = pool_destroy,
        .cuMemPoolSetAttribute = pool_set,
        .cuMemHostAlloc = host_alloc,
        .cuMemFreeHost = host_free,
        .cuPointerGetAttributes = pointer_attributes,
        .cuStreamCreate = stream_create,
        .cuStreamDestroy = stream_destroy,
        .cuStreamSynchronize = stream_synchronize,
        .cuEventCreate = event_create,
        .cuEventDestroy = event_destroy,
        .cuEventRecord = event_record,
        .cuEventQuery = event_query,
        .cuEventSynchronize = event_synchronize,
        .cuStreamWaitEvent = stream_wait_event,
        .cuMemcpyHtoDAsync = up,
        .cuMemcpyDtoHAsync = down,
        .cuMemcpyDtoDAsync = within,
        .cuMemsetD8Async = fill,
    };
}

/* -- what is asked of the streams --------------------------------------------------------------------------------- */

#define STREAMS 4
#define THREADS 3
#define PARTS 64 /* of device memory, each for one round trip at a time */
#define PART (sizeof device_memory / PARTS)

static ag_stream *streams[STREAMS + 1]; /* the last one is the CPU's */
static atomic_uint whole, failed;

typedef struct trip { /* x to the device and back */
    op up, down;
    uint8_t *x, *y;
    size_t size;
} trip;

static trip begin_trip(rng *r, int thread, uint32_t turn, ag_storage *storage)
{
    trip t = {.size = 1 + rng_below(r, PART)};
    bool by_pinned = rng_below(r, 2);
    uint8_t *place = device_memory + PART * (size_t)((thread * 16 + (int)turn % 16) % PARTS);
    t.x = malloc(t.size);
    t.y = by_pinned ? pinned_memory + (sizeof pinned_memory / THREADS) * (size_t)thread : malloc(t.size);
    if (by_pinned && t.size > sizeof pinned_memory / THREADS) t.size = sizeof pinned_memory / THREADS;
    CHECK(t.x != NULL && t.y != NULL);
    memset(t.x, (int)(turn % 251) + 1, t.size);
    ag_stream *to = streams[rng_below(r, STREAMS)], *from = streams[rng_below(r, STREAMS)];
    ag_slot slots[2] = {rig_wait_slot(from, AG_TAIL), rig_copy(place, t.x, t.size)};
    rig_writes(&slots[1], storage);
    ag_block *blocks[4];
    uint64_t tickets[4];
    ag_slot back[2] = {rig_wait_slot(to, AG_TAIL), rig_copy(t.y, place, t.size)};
    rig_reads(&back[1], storage);
    /* In one step: nothing of another thread comes between. */
    ag_batch batches[2] = {{to, slots, 2, blocks, tickets}, {from, back, 2, blocks + 2, tickets + 2}};
    ag_submit_status status = ag_submit(batches, 2);
    if (status == AG_SUBMIT_LOST) {
        for (int i = 0; i < 2; ++i) ag_slot_drop(&slots[i]), ag_slot_drop(&back[i]);
        free(t.x);
        if (!by_pinned) free(t.y);
        return (trip){.x = NULL};
    }
    CHECK_EQ(status, AG_SUBMIT_OK);
    ag_block_unref(blocks[0]);
    ag_block_unref(blocks[2]);
    t.up = (op){to, blocks[1], tickets[1]};
    t.down = (op){from, blocks[3], tickets[3]};
    return t;
}

static void end_trip(trip *t, ag_notifier *notifier)
{
    if (t->x == NULL) return;
    rig_sleep(t->down, notifier);
    rig_wait(t->up);
    if (rig_result(t->down) == 0) {
        CHECK(memcmp(t->x, t->y, t->size) == 0);
        atomic_fetch_add(&whole, 1);
    } else {
        atomic_fetch_add(&failed, 1);
    }
    rig_drop(t->up);
    free(t->x);
    if (!lies_in((uint64_t)(uintptr_t)t->y, pinned_memory, sizeof pinned_memory)) free(t->y);
}

static void *travel(void *argument)
{
    int thread = (int)(intptr_t)argument;
    rng r = rng_new(10 + (uint64_t)thread);
    ag_notifier *notifier = ag_notifier_new();
    ag_storage *storage = ag_storage_new("storage");
    for (uint32_t turn = 0; turn < SCALED(400); ++turn) {
        trip t = begin_trip(&r, thread, turn, storage);
        if (t.x != NULL && rng_below(&r, 16) == 0) rig_abort(t.up);
        if (rng_below(&r, 8) == 0) {
            ag_stream *held = streams[rng_below(&r, STREAMS + 1)];
            ag_stream_hold(held);
            check_spin(rng_below(&r, 20000));
            CHECK(ag_stream_release(held));
        }
        if (rng_below(&r, 4) == 0 && ag_stream_lost(streams[0]) == NULL) { /* the CPU waits for a device */
            rig_send(streams[STREAMS], rig_wait_slot(streams[rng_below(&r, STREAMS)], AG_TAIL));
            rig_send(streams[STREAMS], rig_delay(rng_below(&r, 20000)));
        }
        end_trip(&t, notifier);
    }
    ag_notifier_close(notifier);
    ag_notifier_unref(notifier);
    ag_storage_unref(storage);
    return NULL;
}

static void round_of(ag_pool *pool, int one_in, bool lose)
{
    pthread_t threads[THREADS];
    ag_cuda_device *device = ag_cuda_device_new(0, "CUDA0");
    CHECK(device != NULL);
    atomic_store(&sticky, 0);
    atomic_store(&trouble, one_in);
    for (int i = 0; i < STREAMS; ++i) CHECK((streams[i] = ag_cuda_stream(device, "CUDA0")) != NULL);
    streams[STREAMS] = rig_stream(pool, 1);
    for (intptr_t i = 0; i < THREADS; ++i) pthread_create(&threads[i], NULL, travel, (void *)i);
    if (lose) {
        check_nap(20000);
        pthread_rwlock_wrlock(&breaking);
        atomic_store(&sticky, 1);
        pthread_rwlock_unlock(&breaking);
    }
    for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
    for (int i = 0; i <= STREAMS; ++i) {
        rig_drain(streams[i]);
        ag_stream_unref(streams[i]);
    }
    ag_cuda_device_unref(device);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    set_up_driver();
    ag_pool *pool = rig_pool(1);
    round_of(pool, 0, false);
    CHECK_EQ(atomic_load(&failed) == 0 || atomic_load(&whole) > 0, 1);
    unsigned well = atomic_load(&whole);
    round_of(pool, 300, false);
    round_of(pool, 0, true);
    round_of(pool, 300, true);
    atomic_store(&trouble, 0);
    atomic_store(&sticky, 0);
    ag_cuda_device *device = ag_cuda_device_new(0, "CUDA0");
    const unsigned filled = atomic_load(&fills);
    for (int i = 0; i < SCALED(2000); ++i) { /* come and go, with and without work */
        ag_stream *stream = ag_cuda_stream(device, "CUDA0");
        CHECK(stream != NULL);
        if (i % 2) rig_send(stream, rig_fill(device_memory + 8 * i, i, 8));
        ag_stream_unref(stream);
        if (i % 16 == 0) check_nap(200);
    }
    ag_cuda_device_unref(device);
    /* What is not issued when all is told to stop never is, and its stream stays with it. */
    CHECK_SOON(atomic_load(&fills) - filled == SCALED(2000) / 2);
    /* Each thread ends by itself: the last of a queue gives back what it had. One stream is the memory's, of each device
     * that had a context; those stay for as long as the process. */
    CHECK_SOON(atomic_load(&live_events) == 0 && atomic_load(&live_rings) == 0);
    CHECK_SOON(atomic_load(&live_streams) <= 5);
    ag_cuda_stop(UINT64_C(60000000000));
    printf("%u round trips whole (%u undisturbed), %u failed\n", atomic_load(&whole), well, atomic_load(&failed));
    CHECK(well > 0 && atomic_load(&failed) > 0);
    rig_end(pool);
    return 0;
}
