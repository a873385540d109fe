/* flash_attn_ext of a few rows (decoding) on a Zen 5: a block of keys of all heads, in the order of memory.
 *
 * Results differ from plain C by at most 2e-6 of the largest value that a row attends to. Keys and values are f16,
 * bf16, q8_0 or q4_0. Not here: heads that do not lie side by side, other types and widths (avx512/flash_narrow.c,
 * avx512/flash_codes.c), the walk over blocks (lower/attention/flash_decode.c). */
#include "kernels/avx512/flash_heads.h"

/* A line of memory is fetched once, into L1, and is used there: first all keys of the block are read from end to end,
 * then all values. So each line is prefetched 24 KB before it is read, without L2, across the ends of keys and values.
 * Computing one head after the other needs lines of the whole block twice: from memory into L2, then from L2 into L1.
 * Both wait for the same few buffers, which cost a third of the bandwidth.
 *
 * A Zen 5 starts two products of 16 lanes in each cycle, and two loads. So a number that is multiplied with several
 * vectors is loaded to a register once, and a loop that decides when to prefetch costs a fifth: how many bytes a step
 * asks for is constant. */
enum {
    /* bytes of values that all heads compute before the next ones; the sums of values pass through L1 each time */
    SWEEP = 12288,
    CODES_SWEEP = 18432, /* of quantized values: more, as each sweep begins with scales that it has to wait for */
    ALL_ROWS = AGK_FLASH_NARROW - 1,
    PAIR = 2, /* vectors of a block of 32 elements */
    MOST_HEADS = 32,
};

/* -- prefetches */

/* What is asked for next; behind `end`, the first lines of what is read after that. */
typedef struct asked {
    uintptr_t at, end, next;
} asked;

static inline asked asked_from(const void *from, int64_t bytes, const void *next)
{
    const uintptr_t begin = (uintptr_t)from, end = begin + (uintptr_t)bytes;
    return (asked){.at = begin + AGK_FLASH_HEADS_AHEAD, .end = end, .next = (uintptr_t)next};
}

/* Prefetches `bytes`, a constant, behind the product that made `sum`. */
AGK_INLINE void ask_for(asked *a, int64_t bytes, vf *sum)
{
#pragma GCC unroll 16
    for (int64_t i = 0; i < bytes; i += LINE) {
        __asm__ volatile("prefetchnta %1" : "+v"(*sum) : "m"(*(const char (*)[LINE])(a->at + (uintptr_t)i)));
    }
    a->at += (uintptr_t)bytes;
    if (a->at < a->end) return;
    a->at = a->next;
    a->end = UINTPTR_MAX;
}

/* -- heads and rows */

/* Where a head's numbers are, found once for a block. */
typedef struct place {
    const float *q, *shrink;
    float *s, *o;
    codes codes;
} place;

AGK_INLINE float *floats_as_is(float *at)
{
    __asm__("" : "+r"(at));
    return at;
}

/* -- keys */

/* Products of four keys with up to four rows, to S at `to`. */
AGK_INLINE void quad(int type, int rows, int64_t d, const float *q, int64_t q_step, const char *k, int64_t step,
                     asked *a, float *to)
{
    vf acc[ROWS][QUAD];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 4
        for (int j = 0; j < QUAD; ++j) acc[r][j] = v_zero();
    }
#pragma GCC unroll 1
    for (int64_t i = 0; i < d; i += VF, q += VF, k += 2 * VF) {
        vf x[QUAD];
#pragma GCC unroll 4
        for (int j = 0; j < QUAD; ++j) x[j] = v_part(type, k + j * step, 0, VF);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
            vf y = v_load(q + r * q_step);
            __asm__("" : "+v"(y)); /* one load, not one for each product */
#pragma GCC unroll 4
            for (int j = 0; j < QUAD; ++j) acc[r][j] = v_fma(x[j], y, acc[r][j]);
        }
        if (a != NULL) ask_for(a, QUAD * 2 * VF, &acc[0][0]);
    }
    vf sums[ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) sums[r] = r < rows ? lanes(acc[r][0], acc[r][1], acc[r][2], acc[r][3]) : v_zero();
    v_store(to, quarters(sums[0], sums[1], sums[2], sums[3]));
}

AGK_INLINE void float_keys(int type, int rows, const agk_flash_tile *t, int64_t heads, const place *x, int64_t n,
                           const char *k, int64_t bytes, asked *a)
{
    const int64_t step = t->k_step, d = t->d, q_step = t->q_step / (int64_t)sizeof(float);
#pragma GCC unroll 1
    for (int64_t j = 0; j < n; j += QUAD, k += QUAD * step) {
        const char *at = k;
#pragma GCC unroll 1
        for (int64_t h = 0; h < heads; ++h, at += bytes) {
            const float *q = x[h].q;
            float *s = x[h].s + QUAD * j;
            quad(type, rows < ROWS ? rows : ROWS, d, q, q_step, at, step, a, s);
            if (rows > ROWS) {
                quad(type, rows - ROWS, d, q + ROWS * q_step, q_step, at, step, NULL, s + ROWS * AGK_FLASH_KEYS);
            }
        }
    }
}

/* Adds the products of 16 keys' codes of a block with some rows, times scales, to s. */
AGK_INLINE void add_rows(int rows, const __m512i x[DWORDS], const int32_t *q, int64_t d, const float *off,
                         int64_t blocks, vf scale, vf *s)
{
    __m512i sum[ROWS][PLANES];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) sum[r][0] = sum[r][1] = sum[r][2] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int i = 0; i < DWORDS; ++i) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) add_planes(sum[r], x[i], q + r * d + 4 * i);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) s[r] = v_fma(joined(sum[r]) + v_set(off[r * blocks]), scale, s[r]);
}

/* Products of 16 keys with all rows, to s[row][16]. */
AGK_INLINE void turned_keys(int type, int rows, int64_t d, const codes *c, const char *k, int64_t step, asked *a, vf *s)
{
    const int64_t blocks = d / V_BLOCK, size = bytes_of(type, V_BLOCK);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) s[r] = v_zero();
#pragma GCC unroll 1
    for (int64_t b = 0; b < blocks; ++b, k += size) {
        const char *at[TURNED];
#pragma GCC unroll 4
        for (int g = 0; g < TURNED / QUAD; ++g) {
            const char *four = as_is(k + g * QUAD * step);
#pragma GCC unroll 4
            for (int j = 0; j < QUAD; ++j) at[g * QUAD + j] = four + j * step;
        }
        __m512i x[DWORDS];
        turned(type, at, 0, x);
        const vf scale = turned_scales(type, at, 0);
        const int32_t *q = c->planes + b * V_BLOCK;
        const float *off = c->off + b;
        add_rows(rows < ROWS ? rows : ROWS, x, q, d, off, blocks, scale, s);
        ask_for(a, TURNED * size, &s[0]);
        if (rows > ROWS) add_rows(rows - ROWS, x, q + ROWS * d, d, off + ROWS * blocks, blocks, scale, s + ROWS);
    }
}

AGK_INLINE void code_keys(int type, int rows, const agk_flash_tile *t, int64_t heads, const place *x, int64_t n,
                          const char *k, int64_t bytes, asked *a)
{
    const int64_t step = t->k_step, d = t->d;
#pragma GCC unroll 1
    for (int64_t j = 0; j < n; j += TURNED, k += TURNED * step) {
        const char *at = k;
#pragma GCC unroll 1
        for (int64_t h = 0; h < heads; ++h, at += bytes) {
            vf s[ALL_ROWS];
            turned_keys(type, rows, d, &x[h].codes, at, step, a, s);
            store_turned(&t[h], &x[h].codes, s, x[h].s + QUAD * j);
        }
    }
}

/* -- probabilities */

/* From products in S to probabilities in S, four rows at a time. */
static void probabilities(const agk_flash_tile *t, int64_t row, int64_t first, int64_t n, asked *a)
{
    const agk_flash_narrow f = agk_flash_narrow_of(t);
    const int rows = t->n_rows - row < ROWS ? (int)(t->n_rows - row) : ROWS;
    float *p = f.s + row * AGK_FLASH_KEYS, s[ROWS * AGK_FLASH_KEYS];
    const vf old = by_row(f.max + row, rows);
    logits g = logits_begin(t, &f, row, first, n, rows);
    vf max = old, sum = v_zero();
    for (int64_t j = 0; j < n; j += QUAD) {
        add_quad(&g, j, v_load(p + QUAD * j), s, p, &max, &sum);
        ask_for(a, LINE, &sum);
    }
    logits_end(&g, &f, old, max, sum, s, p);
}

/* -- values */

AGK_INLINE int wide(int rows) /* vectors of values that are computed together: 16 sums are in registers */
{
    return rows > ROWS ? PAIR : WIDE;
}

/* Probabilities of four keys times the scales of their blocks: of each block, of each group of four rows. */
AGK_INLINE void scale_quad(int type, int blocks, bool two, const float *p, const char *v, int64_t step,
                           float to[2][2][VF])
{
    const int64_t size = bytes_of(type, V_BLOCK);
#pragma GCC unroll 2
    for (int b = 0; b < blocks; ++b, v += size) {
        const vf scales = _mm512_broadcast_f32x4(scales_of(type, v, v + step, v + 2 * step, v + 3 * step));
        v_store(to[b][0], v_load(p) * scales);
        if (two) v_store(to[b][1], v_load(p + ROWS * AGK_FLASH_KEYS) * scales);
    }
}

/* The sums of values of a head += those of n keys, for one part of the width. shrink NULL: the sums so far need no
 * factor. */
AGK_INLINE void sweep(int type, int rows, int64_t dv, int64_t step, int64_t n, const float *p, const char *v,
                      const float *shrink, asked *a, float *o)
{
    const int nv = wide(rows), blocks = nv / PAIR, factors = v_in_blocks(type) ? blocks : 1;
    const int64_t size = bytes_of(type, V_BLOCK);
    vf acc[ALL_ROWS][WIDE];
    float *row = o;
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r, row = floats_as_is(row + dv)) {
#pragma GCC unroll 4
        for (int h = 0; h < nv; ++h) {
            acc[r][h] = v_load(row + h * VF);
            if (shrink != NULL) acc[r][h] = acc[r][h] * v_set(shrink[r]);
        }
    }
    /* of these four keys and of the next four: what was just stored can't be loaded yet */
    float scaled[2][2][2][VF];
    if (v_in_blocks(type)) scale_quad(type, blocks, rows > ROWS, p, v, step, scaled[0]);
#pragma GCC unroll 1
    for (int64_t j = 0; j < n; j += QUAD, p += VF) {
        float (*its)[2][VF] = scaled[j / QUAD % 2];
        if (v_in_blocks(type)) { /* behind the last keys, the same again */
            const int64_t next = j + QUAD < n ? QUAD : 0;
            float (*to)[2][VF] = scaled[(j / QUAD + 1) % 2];
            scale_quad(type, blocks, rows > ROWS, p + next / QUAD * VF, v + next * step, step, to);
        }
#pragma GCC unroll 4
        for (int key = 0; key < QUAD; ++key, v = as_is(v + step)) {
            vf x[WIDE];
#pragma GCC unroll 4
            for (int h = 0; h < nv; h += PAIR) {
                if (v_in_blocks(type)) {
                    of_block(type, v + h / PAIR * size, NULL, x + h);
                } else {
                    x[h] = v_part(type, v, h * VF, VF);
                    x[h + 1] = v_part(type, v, (h + 1) * VF, VF);
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                const int64_t within = r % ROWS * QUAD + key;
                vf y[2];
#pragma GCC unroll 2
                for (int b = 0; b < factors; ++b) {
                    const float *from = v_in_blocks(type) ? its[b][r / ROWS] : p + r / ROWS * ROWS * AGK_FLASH_KEYS;
                    __asm__("vbroadcastss %1, %0" : "=v"(y[b]) : "m"(from[within])); /* once, for all products */
                }
#pragma GCC unroll 4
                for (int h = 0; h < nv; ++h) acc[r][h] = v_fma(x[h], y[v_in_blocks(type) ? h / PAIR : 0], acc[r][h]);
            }
            if (!v_in_blocks(type)) ask_for(a, nv * VF * 2, &acc[0][0]);
        }
        if (v_in_blocks(type)) ask_for(a, QUAD * blocks * size, &acc[0][0]);
    }
    row = o;
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r, row = floats_as_is(row + dv)) {
#pragma GCC unroll 4
        for (int h = 0; h < nv; ++h) v_store(row + h * VF, acc[r][h]);
    }
}

AGK_INLINE void values(int type, int rows, const agk_flash_tile *t, int64_t heads, const place *x, int64_t n,
                       const char *v, int64_t bytes, asked *a)
{
    const int64_t dv = t->dv, step = t->v_step, part = wide(rows) * VF;
    const int64_t part_bytes = bytes_of(type, part);
    int64_t each = (v_in_blocks(type) ? CODES_SWEEP : SWEEP) / step / QUAD * QUAD;
    if (each < QUAD) each = QUAD;
#pragma GCC unroll 1
    for (int64_t j = 0; j < n; j += each, v += each * step) {
        const int64_t keys = n - j < each ? n - j : each;
        const char *head = v;
#pragma GCC unroll 1
        for (int64_t h = 0; h < heads; ++h, head += bytes) {
            const float *shrink = j == 0 ? x[h].shrink : NULL, *p = x[h].s + QUAD * j;
            const char *at = head;
#pragma GCC unroll 1
            for (int64_t i = 0; i < dv; i += part, at += part_bytes) {
                sweep(type, rows, dv, step, keys, p, at, shrink, a, x[h].o + i);
            }
        }
    }
}

/* -- a block */

typedef void part_fn(const agk_flash_tile *t, int64_t heads, const place *x, int64_t n, const char *rows, int64_t bytes,
                     asked *a);

#define PARTS_OF(name, TYPE, rows) \
    static void keys_##name##_##rows(const agk_flash_tile *t, int64_t heads, const place *x, int64_t n, const char *k, \
                                     int64_t bytes, asked *a) \
    { \
        if (v_in_blocks(AGK_##TYPE)) \
            code_keys(AGK_##TYPE, rows, t, heads, x, n, k, bytes, a); \
        else \
            float_keys(AGK_##TYPE, rows, t, heads, x, n, k, bytes, a); \
    } \
    static void values_##name##_##rows(const agk_flash_tile *t, int64_t heads, const place *x, int64_t n, \
                                       const char *v, int64_t bytes, asked *a) \
    { \
        values(AGK_##TYPE, rows, t, heads, x, n, v, bytes, a); \
    }
#define TYPES_OF(rows) AGK_EACH_TYPE(PARTS_OF, rows)
AGK_EACH_ROWS(TYPES_OF)

AGK_FIND_PARTS(part_fn, part_fn)

int64_t agk_flash_heads_zen5(const agk_flash_tile *t, int64_t heads, const agk_flash_rows *x)
{
    const int64_t rows = t->n_rows, n = x->n - x->n % (v_in_blocks(t->k_type) ? TURNED : QUAD);
    if (rows > ALL_ROWS || heads > MOST_HEADS || n == 0) return 0;
    part_fn *keys = keys_of(t->k_type, rows), *its_values = values_of(t->v_type, rows);
    if (keys == NULL || its_values == NULL) return 0;
    if (t->d % V_BLOCK != 0 || t->dv % (wide((int)rows) * VF) != 0) return 0;
    const int64_t k_bytes = t->k_step / heads, v_bytes = t->v_step / heads;
    place at[MOST_HEADS];
    for (int64_t h = 0; h < heads; ++h) {
        const agk_flash_narrow f = agk_flash_narrow_of(&t[h]);
        at[h] = (place){.q = (const float *)(const void *)t[h].q, .shrink = f.shrink, .s = f.s, .o = f.o};
        at[h].codes = codes_of(&t[h]);
    }
    asked a = asked_from(x->k, n * t->k_step, x->v);
    keys(t, heads, at, n, x->k, k_bytes, &a);
    a = asked_from(x->v, n * t->v_step, x->next);
    for (int64_t h = 0; h < heads; ++h) {
        for (int64_t r = 0; r < rows; r += ROWS) probabilities(&t[h], r, x->first, n, &a);
    }
    its_values(t, heads, at, n, x->v, v_bytes, &a);
    return n;
}
