/* Streams of CUDA devices under load: submissions, waits across streams and to the CPU, aborts, holds, driver calls
 * that fail, lost devices, streams that come and go. The driver is an imitation whose operations take random times.
 * In the end all operations are done, copies that succeeded are complete, and no thread or event of the driver is
 * left.
 *
 * Not here: that driver (cuda_driver.h), kernels and graphs (tests/devices/cuda). */
#include <pthread.h>

#include "cuda/streams.h"
#include "cuda_driver.h"
#include "rig.h"

#define STREAMS 4
#define THREADS 3
#define PARTS 64 /* pieces of device memory, each for one round trip at a time */
#define PART (sizeof device_memory / PARTS)

static ag_stream *streams[STREAMS + 1]; /* the last one is the CPU's */
static atomic_uint whole, failed;

typedef struct trip { /* a round trip: x to the device, and from there to y */
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
    /* One submission for both streams: no operation of another thread can come in between. */
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
        if (rng_below(&r, 4) == 0 && ag_stream_lost(streams[0]) == NULL) { /* the CPU's stream waits for a device */
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
    for (int i = 0; i < SCALED(2000); ++i) { /* streams come and go, with work and without */
        ag_stream *stream = ag_cuda_stream(device, "CUDA0");
        CHECK(stream != NULL);
        if (i % 2) rig_send(stream, rig_fill(device_memory + 8 * i, i, 8));
        ag_stream_unref(stream);
        if (i % 16 == 0) check_nap(200);
    }
    ag_cuda_device_unref(device);
    /* Dropped streams still issue their queued work: all fills must run before `ag_cuda_stop`, which would drop
     * them. */
    CHECK_SOON(atomic_load(&fills) - filled == SCALED(2000) / 2);
    /* The thread of each stream ends by itself, and the last one of a queue frees its events and rings. Each device
     * that had a context keeps one stream for its memory until the process ends. */
    CHECK_SOON(atomic_load(&live_events) == 0 && atomic_load(&live_rings) == 0);
    CHECK_SOON(atomic_load(&live_streams) <= 5);
    ag_cuda_stop(UINT64_C(60000000000));
    printf("%u round trips whole (%u undisturbed), %u failed\n", atomic_load(&whole), well, atomic_load(&failed));
    CHECK(well > 0 && atomic_load(&failed) > 0);
    rig_end(pool);
    return 0;
}
