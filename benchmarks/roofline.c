/* What the machine can do at best: bytes read and copied per second, multiplications per second.
 *
 * Here: loops of nothing but the instruction in question. Built by roofline.py for the processor at
 * hand, never part of the package. Not here: which kernel is measured against which figure.
 *
 * Operations count as in a matrix product: a multiplication and an addition are two. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__AMX_TILE__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- peaks: each runs `turns` times a block of instructions and says how many operations one turn has */

typedef double peak_fn(long turns);

static volatile float sink; /* what the loops computed: nothing of them may be left out */

#define REPEAT12(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define REPEAT24(X) REPEAT12(X) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23)

/* Multiply and add on whole vectors; compilers make FMA of it. 24 chains (12 where there are but 16
 * registers) hide its latency of 4 or 5 cycles. */
#if defined(__AVX512F__)
enum { LANES = 16, CHAINS = 24 };
#define REPEAT_CHAINS REPEAT24
#elif defined(__AVX__)
enum { LANES = 8, CHAINS = 12 };
#define REPEAT_CHAINS REPEAT12
#elif defined(__aarch64__)
enum { LANES = 4, CHAINS = 24 };
#define REPEAT_CHAINS REPEAT24
#else
enum { LANES = 4, CHAINS = 12 };
#define REPEAT_CHAINS REPEAT12
#endif
typedef float floats __attribute__((vector_size(LANES * 4)));

static double peak_f32(long turns)
{
    floats factor, term;
    for (int i = 0; i < LANES; ++i) factor[i] = 0.5f, term[i] = 0.25f;
#define X(i) floats sum##i = term + sink; /* read each time: else all chains were one to the compiler */
    REPEAT_CHAINS(X)
#undef X
    for (long turn = 0; turn < turns; ++turn) {
#define X(i) sum##i = sum##i * factor + term;
        REPEAT_CHAINS(X)
#undef X
    }
#define X(i) factor += sum##i;
    REPEAT_CHAINS(X)
#undef X
    sink = factor[0];
    return 2.0 * LANES * CHAINS;
}

/* The instruction on 512-bit registers, each time into another one of 24. */
#define PEAK_512_BEGIN(i) __m512i sum##i = _mm512_setzero_si512();
#define PEAK_512_END(i) x = _mm512_xor_si512(x, sum##i);
#define PEAK_512(function, one, products) \
    static double function(long turns) \
    { \
        __m512i x = _mm512_set1_epi16(0x3f01); \
        REPEAT24(PEAK_512_BEGIN) \
        for (long turn = 0; turn < turns; ++turn) { \
            REPEAT24(one) \
        } \
        REPEAT24(PEAK_512_END) \
        sink = (float)_mm512_cvtsi512_si32(x); \
        return 2.0 * (products) * 24; \
    }

#if defined(__AVX512BF16__)
#define VDPBF16PS(i) __asm__ volatile("vdpbf16ps %1, %1, %0" : "+v"(sum##i) : "v"(x));
PEAK_512(peak_bf16, VDPBF16PS, 32)
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
static double peak_bf16(long turns)
{
    uint16x8_t x = vdupq_n_u16(0x3f01);
    float32x4_t total = vdupq_n_f32(0);
#define X(i) float32x4_t sum##i = total;
    REPEAT24(X)
#undef X
    for (long turn = 0; turn < turns; ++turn) {
#define X(i) __asm__ volatile("bfmmla %0.4s, %1.8h, %1.8h" : "+w"(sum##i) : "w"(x));
        REPEAT24(X)
#undef X
    }
#define X(i) total = vaddq_f32(total, sum##i);
    REPEAT24(X)
#undef X
    sink = vgetq_lane_f32(total, 0);
    return 2.0 * 16 * 24;
}
#else
#define peak_bf16 NULL
#endif

#if defined(__AVX512VNNI__)
#define VPDPBUSD(i) __asm__ volatile("vpdpbusd %1, %1, %0" : "+v"(sum##i) : "v"(x));
PEAK_512(peak_int8, VPDPBUSD, 64)
#elif defined(__AVX2__)
/* vpdpbusd where there is a 256-bit one, else what it is made of. */
static double peak_int8(long turns)
{
    __m256i x = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1), sums[8];
    for (int i = 0; i < 8; ++i) sums[i] = _mm256_setzero_si256();
    for (long turn = 0; turn < turns; ++turn) {
        for (int i = 0; i < 8; ++i) {
#if defined(__AVXVNNI__)
            (void)ones;
            sums[i] = _mm256_dpbusd_avx_epi32(sums[i], x, x);
#else
            __m256i pairs = _mm256_maddubs_epi16(x, x);
            __asm__("" : "+x"(pairs)); /* computed each time */
            sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs, ones));
#endif
            __asm__("" : "+x"(sums[i]), "+x"(x));
        }
    }
    for (int i = 1; i < 8; ++i) sums[0] = _mm256_xor_si256(sums[0], sums[i]);
    sink = (float)_mm256_extract_epi32(sums[0], 0);
    return 2.0 * 32 * 8;
}
#elif defined(__ARM_FEATURE_DOTPROD)
static double peak_int8(long turns)
{
    int8x16_t x = vdupq_n_s8(3);
    int32x4_t total = vdupq_n_s32(0);
#define X(i) int32x4_t sum##i = total;
    REPEAT24(X)
#undef X
    for (long turn = 0; turn < turns; ++turn) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define X(i) __asm__ volatile("smmla %0.4s, %1.16b, %1.16b" : "+w"(sum##i) : "w"(x));
#else
#define X(i) __asm__ volatile("sdot %0.4s, %1.16b, %1.16b" : "+w"(sum##i) : "w"(x));
#endif
        REPEAT24(X)
#undef X
    }
#define X(i) total = vaddq_s32(total, sum##i);
    REPEAT24(X)
#undef X
    sink = (float)vgetq_lane_s32(total, 0);
#if defined(__ARM_FEATURE_MATMUL_INT8)
    return 2.0 * 32 * 24;
#else
    return 2.0 * 16 * 24;
#endif
}
#else
#define peak_int8 NULL
#endif

/* Tiles of 16 rows of 64 bytes; four sums, since a product takes 52 cycles and one begins every 16. What is multiplied is random:
 * the unit takes so much power with numbers that the clock falls, on a Granite Rapids from 3.2 to 2.5 GHz. */
#if defined(__AMX_TILE__) && defined(__linux__)
static int tiles_allowed(void)
{
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) == 0;
}

/* Sums are 0 in tiles 0 to 3, operands in 4 to 7: bytes of any value, or bf16 numbers from 1 to 2 of either sign. */
static void tiles_begin(int bf16)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int i = 0; i < 8; ++i) config.row_bytes[i] = 64, config.rows[i] = 16;
    _tile_loadconfig(&config);
    static _Thread_local uint16_t numbers[4 * 512];
    uint32_t state = 1;
    for (size_t i = 0; i < 4 * 512; ++i) {
        state = state * 1664525u + 1013904223u;
        numbers[i] = (uint16_t)(state >> 16);
        if (bf16) numbers[i] = (uint16_t)((numbers[i] & 0x807fu) | 0x3f80u);
    }
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, numbers, 64);
    _tile_loadd(5, numbers + 512, 64);
    _tile_loadd(6, numbers + 1024, 64);
    _tile_loadd(7, numbers + 1536, 64);
}

#define PEAK_TILES(function, name, products) \
    static double function(long turns) \
    { \
        tiles_begin((products) == 32); \
        for (long turn = 0; turn < turns; ++turn) { \
            __asm__ volatile(name " %tmm4, %tmm6, %tmm0\n\t" name " %tmm4, %tmm7, %tmm1\n\t" name \
                                  " %tmm5, %tmm6, %tmm2\n\t" name " %tmm5, %tmm7, %tmm3"); \
        } \
        _tile_release(); \
        return 2.0 * 16 * 16 * (products) * 4; \
    }
#if defined(__AMX_BF16__)
PEAK_TILES(peak_bf16_tiles, "tdpbf16ps", 32)
#else
#define peak_bf16_tiles NULL
#endif
#if defined(__AMX_INT8__)
PEAK_TILES(peak_int8_tiles, "tdpbssd", 64)
#else
#define peak_int8_tiles NULL
#endif
#else
#define peak_bf16_tiles NULL
#define peak_int8_tiles NULL
static int tiles_allowed(void)
{
    return 0;
}
#endif

static peak_fn *peak_named(const char *name)
{
    if (strcmp(name, "f32") == 0) return peak_f32;
    if (strcmp(name, "bf16") == 0) return peak_bf16;
    if (strcmp(name, "int8") == 0) return peak_int8;
    if (!tiles_allowed()) return NULL;
    if (strcmp(name, "bf16 tiles") == 0) return peak_bf16_tiles;
    if (strcmp(name, "int8 tiles") == 0) return peak_int8_tiles;
    return NULL;
}

/* --- memory */

typedef uint64_t words __attribute__((vector_size(64), may_alias));

/* Every line is loaded: each goes into one of eight sums, which go into the sink. */
static void read_all(const char *data, size_t size)
{
    words sums[8];
    memset(sums, 0, sizeof sums);
    for (size_t i = 0; i + 512 <= size; i += 512) {
        const words *line = (const words *)(const void *)(data + i);
        for (int k = 0; k < 8; ++k) {
            __builtin_prefetch(data + i + 4096 + 64 * k);
            sums[k] ^= line[k];
        }
    }
    for (int k = 1; k < 8; ++k) sums[0] ^= sums[k];
    sink = (float)sums[0][0];
}

/* --- threads */

struct task {
    peak_fn *peak;
    const char *from;
    char *to;
    size_t size;
    int repeats;
    double seconds; /* peaks: how long */
    atomic_int *waiting;
    double begun, ended, amount;
};

static void *carry_out(void *argument)
{
    struct task *task = argument;
    double begun;
    long turns = 2000;
    if (task->peak != NULL) task->peak(turns); /* wide units take a while to wake */
    atomic_fetch_sub(task->waiting, 1);
    while (atomic_load(task->waiting) > 0) sched_yield();
    task->begun = begun = now();
    do {
        if (task->peak != NULL) {
            task->amount += task->peak(turns) * (double)turns;
        } else {
            for (int i = 0; i < task->repeats; ++i) {
                if (task->to == NULL)
                    read_all(task->from, task->size);
                else
                    memcpy(task->to, task->from, task->size);
                task->amount += (double)task->size * (task->to == NULL ? 1 : 2);
            }
        }
    } while (task->peak != NULL && now() - begun < task->seconds);
    task->ended = now();
    return NULL;
}

/* Units per second from the first beginning to the last end; a negative number if no thread starts. */
static double together(struct task *tasks, int n)
{
    pthread_t threads[256];
    atomic_int waiting = n;
    double begun = 0, ended = 0, amount = 0;
    int started = 0;
    for (int i = 0; i < n; ++i) tasks[i].waiting = &waiting, tasks[i].amount = 0;
    for (int i = 1; i < n; ++i) {
        if (pthread_create(&threads[i], NULL, carry_out, &tasks[i]) != 0) break;
        started = i;
    }
    atomic_fetch_sub(&waiting, n - 1 - started); /* who could not start is not waited for */
    carry_out(&tasks[0]);
    for (int i = 1; i <= started; ++i) pthread_join(threads[i], NULL);
    for (int i = 0; i <= started; ++i) {
        if (i == 0 || tasks[i].begun < begun) begun = tasks[i].begun;
        if (i == 0 || tasks[i].ended > ended) ended = tasks[i].ended;
        amount += tasks[i].amount;
    }
    return started == n - 1 ? amount / (ended - begun) : -1;
}

/* --- what roofline.py calls; n threads, 1 to 256 */

/* Operations per second, 0 if the processor has no such instruction. */
double aggml_bench_peak(const char *name, int n, double seconds)
{
    struct task tasks[256];
    peak_fn *peak = peak_named(name);
    if (peak == NULL) return 0;
    memset(tasks, 0, sizeof tasks);
    for (int i = 0; i < n; ++i) tasks[i].peak = peak, tasks[i].seconds = seconds;
    return together(tasks, n);
}

/* Memory in huge pages where the system has them, filled so that every page is its own. */
void *aggml_bench_memory(size_t size)
{
    const size_t huge = (size_t)2 << 20;
    uint64_t state = 88172645463325252u;
    char *data = mmap(NULL, size + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return NULL;
    data += (huge - (uintptr_t)data % huge) % huge;
#if defined(MADV_HUGEPAGE)
    madvise(data, size, MADV_HUGEPAGE);
#endif
    for (size_t i = 0; i + 8 <= size; i += 8) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        memcpy(data + i, &state, 8);
    }
    return data;
}

/* Bytes read per second: `size` bytes of `data` once, a share for each thread. */
double aggml_bench_read(const char *data, size_t size, int n)
{
    struct task tasks[256];
    const size_t share = size / (size_t)n / 512 * 512;
    memset(tasks, 0, sizeof tasks);
    for (int i = 0; i < n; ++i) {
        tasks[i].from = data + (size_t)i * share, tasks[i].size = share, tasks[i].repeats = 1;
    }
    return together(tasks, n);
}

/* Bytes read and written per second: `size` of `from` to `to`, `repeats` times over. */
double aggml_bench_copy(char *to, const char *from, size_t size, int repeats, int n)
{
    struct task tasks[256];
    const size_t share = size / (size_t)n / 512 * 512;
    memset(tasks, 0, sizeof tasks);
    for (int i = 0; i < n; ++i) {
        const size_t at = (size_t)i * share;
        tasks[i].from = from + at, tasks[i].to = to + at, tasks[i].size = share;
        tasks[i].repeats = repeats;
    }
    return together(tasks, n);
}
