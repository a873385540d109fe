/* For every program here: CHECK, random numbers with a printed seed, waiting with a limit.
 *
 * A failed check prints its place and ends the process at once: other threads may hold anything. Not here: streams
 * and plans (rig.h). */
#ifndef TEST_CHECK_H
#define TEST_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Programs under a sanitizer run 5 to 20 times slower, so SCALED(n) is a smaller number of rounds there. */
#if defined(__SANITIZE_THREAD__)
#define SCALED(n) ((n) / 10)
#elif defined(__SANITIZE_ADDRESS__)
#define SCALED(n) ((n) / 4)
#else
#define SCALED(n) (n)
#endif

#define PATIENCE_S 60 /* seconds, enough for a busy machine; longer is a hang */

static uint64_t check_seed = 1;

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: not true: %s (seed %llu)\n", __FILE__, __LINE__, #condition, \
                    (unsigned long long)check_seed); \
            _Exit(1); \
        } \
    } while (0)

#define CHECK_EQ(a, b) \
    do { \
        long long left_ = (long long)(a), right_ = (long long)(b); \
        if (left_ != right_) { \
            fprintf(stderr, "%s:%d: %s is %lld, %s is %lld (seed %llu)\n", __FILE__, __LINE__, #a, left_, #b, right_, \
                    (unsigned long long)check_seed); \
            _Exit(1); \
        } \
    } while (0)

/* Waits until the condition becomes true; the test fails after PATIENCE_S. */
#define CHECK_SOON(condition) \
    do { \
        double until_ = check_seconds() + PATIENCE_S; \
        while (!(condition)) { \
            check_nap(20); \
            if (check_seconds() > until_) CHECK(!"in time: " #condition); \
        } \
    } while (0)

static inline double check_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline void check_nap(long us)
{
    struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

static inline void check_spin(uint32_t ns)
{
    for (double until = check_seconds() + ns * 1e-9; check_seconds() < until;) continue;
}

/* -- random numbers: one generator per thread ----------------------------------------------------------------- */

typedef struct rng {
    uint64_t state;
} rng;

static inline rng rng_new(uint64_t stream)
{
    return (rng){(check_seed + 0x9e3779b97f4a7c15u * (stream + 1)) | 1};
}

static inline uint32_t rng_next(rng *r) /* the generator xorshift64* */
{
    r->state ^= r->state >> 12;
    r->state ^= r->state << 25;
    r->state ^= r->state >> 27;
    return (uint32_t)(r->state * 0x2545f4914f6cdd1du >> 32);
}

static inline uint32_t rng_below(rng *r, uint32_t n)
{
    return (uint32_t)((uint64_t)rng_next(r) * n >> 32);
}

/* If the program has an argument, it is the seed of a run to repeat. */
static inline void check_begin(int argc, char **argv)
{
    if (argc > 1) check_seed = strtoull(argv[1], NULL, 10);
}

#endif
