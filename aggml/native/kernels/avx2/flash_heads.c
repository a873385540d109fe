/* flash_attn_ext of a few rows (decoding), AVX2: a block of keys of all heads, in the order of memory.
 *
 * Results differ from plain C by at most 2e-6 of the largest value that a row attends to. Not here: the loops over
 * numbers (flash_heads.h), heads that do not lie side by side, widths that are no multiple of 32
 * (kernels/vec/flash_narrow.h), the walk over blocks (lower/attention/flash_decode.c). */
#include "flash_heads.h"

#include "kernels/vec/math.h"

/* All keys of a block are read from end to end, then all values. Meanwhile what is read one block later is prefetched
 * into L2, in the order of memory, spread evenly between products. Nearer (4 to 32 KB), into L1, or with sums of values
 * that pass through L1 for each 8 or 16 keys, a Zen 4 got 0.8 to 0.95 of that from memory.
 *
 * Cycles for a key of a head, in cache on a Zen 4, where products alone take 64, 4 rows of 128: f16 75, q8_0 90, q4_0
 * 99. 5 of them are probabilities. Quantized keys take 16 more multiplications, by scales, and shuffles, which share a
 * pipe with products. */
enum {
    MOST_GROUPS = 2, /* of rows */
    MOST_HEADS = 32,
    MOST_WIDE = 256,      /* the widest keys that become floats for several groups of rows */
    MOST_AHEAD = 1 << 17, /* bytes between what is read and what is prefetched, at most */
};

/* Where a head's numbers are, found once for a block. */
typedef struct place {
    const float *shrink;
    float *q, *s, *o;
} place;

/* -- prefetches */

/* What is asked for next; behind `end`, the first lines of what is read after that. */
typedef struct asked {
    const char *at, *end, *next;
} asked;

AGK_INLINE void move_on(asked *a, int64_t bytes)
{
    a->at += bytes;
    if (a->at < a->end) return;
    a->at = a->next + (a->at - a->end);
    a->end = (const char *)UINTPTR_MAX;
}

static asked asked_from(const char *from, int64_t bytes, const char *next)
{
    asked a = {.at = from, .end = from + bytes, .next = next};
    move_on(&a, bytes < MOST_AHEAD ? bytes : MOST_AHEAD);
    return a;
}

/* -- probabilities */

AGK_INLINE vf twice(__m128 x)
{
    return _mm256_set_m128(x, x);
}

/* The mask of two keys of each row. */
AGK_INLINE vf mask_of(const agk_flash_tile *t, int64_t row, int rows, int64_t key)
{
    uint16_t of[2][ROWS];
    for (int r = 0; r < ROWS; ++r) {
        const char *at = t->mask + (row + (r < rows ? r : 0)) * t->mask_step + 2 * key;
        memcpy(&of[0][r], at, 2);
        memcpy(&of[1][r], at + 2, 2);
    }
    return v_load_f16(of[0]);
}

/* From products in S to probabilities in S, for a group of rows. */
static void probabilities(const agk_flash_tile *t, int64_t row, int64_t first, int64_t n)
{
    const agk_flash_narrow f = agk_flash_narrow_of(t);
    const int rows = t->n_rows - row < ROWS ? (int)(t->n_rows - row) : ROWS;
    float *s = f.s + row * AGK_FLASH_KEYS;
    const vf scale = v_set(t->softcap > 0.0f ? t->scale / t->softcap : t->scale), cap = v_set(t->softcap);
    const vf low = v_set(-__builtin_inff()), slope = twice(_mm_loadu_ps(t->slope + row));
    const __m128 old = _mm_loadu_ps(f.max + row);
    vf max = twice(old);
    for (int64_t j = 0; j < n; j += 2) {
        vf x = v_load(s + j * ROWS) * scale;
        if (t->softcap > 0.0f) x = cap * v_tanh(x);
        if (t->mask_form != AGK_FLASH_NO_MASK) {
            const vf m = mask_of(t, row, rows, first + j);
            x = v_select(v_eq(m, low), low, v_fma(m, slope, x));
        }
        v_store(s + j * ROWS, x);
        max = v_max(x, max);
    }
    max = v_max(max, _mm256_permute2f128_ps(max, max, 1));
    const vf safe = v_select(v_eq(max, low), v_zero(), max), log2e = v_set(1.44269504f);
    vf sum = v_zero();
#pragma GCC unroll 2
    for (int64_t j = 0; j < n; j += 2) {
        const vf p = v_exp2_down((v_load(s + j * ROWS) - safe) * log2e);
        v_store(s + j * ROWS, p);
        sum = sum + p;
    }
    const __m128 total = _mm256_castps256_ps128(sum) + _mm256_extractf128_ps(sum, 1);
    const __m128 shrink = _mm256_castps256_ps128(v_exp2_down((twice(old) - safe) * log2e));
    _mm_storeu_ps(f.max + row, _mm256_castps256_ps128(max));
    _mm_storeu_ps(f.shrink + row, shrink);
    _mm_storeu_ps(f.sum + row, _mm_loadu_ps(f.sum + row) * shrink + total);
}

/* -- a block */

typedef void dots_fn(int64_t d, const float *q, const char *k, int64_t step, const char *ask, float *to);
typedef void values_fn(int64_t dv, int64_t step, int64_t n, const float *p, const char *v, const float *shrink,
                       const char *ask, float *o);
typedef void widen_fn(int64_t d, const char *k, int64_t step, const char *ask, float *to);

#define ROWS_OF(name, TYPE, rows) \
    static void dots_##name##_##rows(int64_t d, const float *q, const char *k, int64_t step, const char *ask, \
                                     float *to) \
    { \
        const int keys = keys_together(AGK_##TYPE, rows); \
        for (int j = 0; j + keys <= KEYS; j += keys, k += keys * step, to += keys * ROWS) { \
            dots(AGK_##TYPE, rows, keys, d, q, k, step, ask, to); \
            ask += keys * bytes_of(AGK_##TYPE, d); \
        } \
        if (keys == 3) dots(AGK_##TYPE, rows, 2, d, q, k, step, ask, to); \
    } \
    static void values_##name##_##rows(int64_t dv, int64_t step, int64_t n, const float *p, const char *v, \
                                       const float *shrink, const char *ask, float *o) \
    { \
        head_values(AGK_##TYPE, rows, dv, step, n, p, v, shrink, ask, o); \
    }
#define EACH_ROWS(X, name, TYPE) X(name, TYPE, 1) X(name, TYPE, 2) X(name, TYPE, 3) X(name, TYPE, 4)
EACH_ROWS(ROWS_OF, f32, F32)
EACH_ROWS(ROWS_OF, f16, F16)
EACH_ROWS(ROWS_OF, bf16, BF16)
EACH_ROWS(ROWS_OF, q8_0, Q8_0)
EACH_ROWS(ROWS_OF, q4_0, Q4_0)

static void widen_q8_0(int64_t d, const char *k, int64_t step, const char *ask, float *to)
{
    widen(AGK_Q8_0, d, k, step, ask, to);
}
static void widen_q4_0(int64_t d, const char *k, int64_t step, const char *ask, float *to)
{
    widen(AGK_Q4_0, d, k, step, ask, to);
}

/* The kernels for a type. widen: if keys of this type become floats for several groups of rows. */
typedef struct loops {
    dots_fn *dots[ROWS];
    values_fn *values[ROWS];
    widen_fn *widen;
} loops;

#define FOUR(what, name) {what##_##name##_1, what##_##name##_2, what##_##name##_3, what##_##name##_4}
#define LOOPS(name, widens) {.dots = FOUR(dots, name), .values = FOUR(values, name), .widen = (widens)}
static const loops of_f32 = LOOPS(f32, NULL), of_f16 = LOOPS(f16, NULL), of_bf16 = LOOPS(bf16, NULL),
                   of_q8_0 = LOOPS(q8_0, widen_q8_0), of_q4_0 = LOOPS(q4_0, widen_q4_0);

static const loops *loops_of(int type)
{
    switch (type) {
    case AGK_F32: return &of_f32;
    case AGK_F16: return &of_f16;
    case AGK_BF16: return &of_bf16;
    case AGK_Q8_0: return &of_q8_0;
    case AGK_Q4_0: return &of_q4_0;
    default: return NULL;
    }
}

static int64_t groups_of(const agk_flash_tile *t)
{
    return (t->n_rows + ROWS - 1) / ROWS;
}
static int64_t rows_of(const agk_flash_tile *t, int64_t group)
{
    return t->n_rows - group * ROWS < ROWS ? t->n_rows - group * ROWS : ROWS;
}

static void all_keys(const agk_flash_tile *t, int64_t heads, const place *at, int64_t n, const char *k, asked a)
{
    const int64_t bytes = t->k_step / heads, groups = groups_of(t), d = t->d;
    const loops *its = loops_of(t->k_type);
    const bool wide = its->widen != NULL && d <= MOST_WIDE && (groups > 1 || t->n_rows == 3);
    for (int64_t j = 0; j < n; j += KEYS, k += KEYS * t->k_step) {
        for (int64_t h = 0; h < heads; ++h) {
            const char *rows = k + h * bytes, *ask = a.at;
            float floats[KEYS * MOST_WIDE];
            if (wide) its->widen(d, rows, t->k_step, ask, floats);
            for (int64_t g = 0; g < groups; ++g) {
                const float *q = at[h].q + g * ROWS * d;
                float *to = at[h].s + (g * AGK_FLASH_KEYS + j) * ROWS;
                if (wide)
                    of_f32.dots[rows_of(t, g) - 1](d, q, (const char *)floats, 4 * d, (const char *)floats, to);
                else
                    its->dots[rows_of(t, g) - 1](d, q, rows, t->k_step, g == 0 ? ask : rows, to);
            }
            move_on(&a, KEYS * bytes);
        }
    }
}

static void all_values(const agk_flash_tile *t, int64_t heads, const place *at, int64_t n, const char *v, asked a)
{
    const int64_t bytes = t->v_step / heads, groups = groups_of(t);
    const loops *its = loops_of(t->v_type);
    for (int64_t h = 0; h < heads; ++h, v += bytes) {
        for (int64_t g = 0; g < groups; ++g) {
            its->values[rows_of(t, g) - 1](t->dv, t->v_step, n, at[h].s + g * AGK_FLASH_KEYS * ROWS, v,
                                           at[h].shrink + g * ROWS, g == 0 ? a.at : v, at[h].o + g * ROWS * t->dv);
        }
        move_on(&a, n * bytes);
    }
}

int64_t agk_flash_heads_avx2(const agk_flash_tile *t, int64_t heads, const agk_flash_rows *x)
{
    const int64_t rows = t->n_rows, n = x->n - x->n % KEYS, k_bytes = n * t->k_step, v_bytes = n * t->v_step;
    if (rows > MOST_GROUPS * ROWS || heads > MOST_HEADS || n == 0 || n > AGK_FLASH_KEYS) return 0;
    if (loops_of(t->k_type) == NULL || loops_of(t->v_type) == NULL) return 0;
    if (t->d % V_BLOCK != 0 || t->dv % V_BLOCK != 0) return 0;
    place at[MOST_HEADS];
    for (int64_t h = 0; h < heads; ++h) {
        const agk_flash_narrow f = agk_flash_narrow_of(&t[h]);
        at[h] = (place){.q = f.o + rows * t->dv, .shrink = f.shrink, .s = f.s, .o = f.o};
        for (int64_t r = 0; r < rows; r += ROWS) side_by_side(&t[h], r, at[h].q + r * t->d);
    }
    all_keys(t, heads, at, n, x->k, asked_from(x->k, k_bytes, x->v));
    for (int64_t h = 0; h < heads; ++h) {
        for (int64_t r = 0; r < rows; r += ROWS) probabilities(&t[h], r, x->first, n);
    }
    all_values(t, heads, at, n, x->v, asked_from(x->v, v_bytes, x->next));
    return n;
}
