/* A small imitation of the CUDA driver: each of its streams has a thread, every operation takes a random time, and
 * calls fail if they are told to. It has global state, so only one program may include it. Not here: the calls that
 * are tested on it (runtime_cuda.c). */
#ifndef TEST_CUDA_DRIVER_H
#define TEST_CUDA_DRIVER_H

#include <pthread.h>

#include "cuda/driver.h"
#include "rig.h"

enum { INVALID = 1, ILLEGAL_ADDRESS = 700 };

typedef struct event {
    atomic_int refs; /* one for its owner, and one for each queued record */
    atomic_uint_fast64_t recorded, done;
} event;

static void event_unref(event *e)
{
    if (atomic_fetch_sub(&e->refs, 1) == 1) free(e);
}

typedef struct work {
    event *event; /* an event, which is done up to `ticket`; NULL: a copy or a fill */
    uint64_t ticket;
    bool waits; /* whether it waits for that ticket, which another stream records; else it records it */
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

/* trouble: one call in so many fails; sticky: all calls fail */
static atomic_int live_streams, live_events, live_rings, sticky, trouble;
static atomic_uint fills, stream_waits;
static pthread_rwlock_t breaking = PTHREAD_RWLOCK_INITIALIZER; /* a lost device must not touch memory any more */
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

#endif
