/* flash_attn_ext of a few rows (decoding) on a Zen 4: blocks of keys of all heads, in the order of memory.
 *
 * Results differ from plain C by at most 2e-6 of the largest value that a row attends to. Not here: the loops over
 * numbers (flash_heads.h, flash_heads_halves.h, flash_heads_codes.h), heads that do not lie side by side, other types
 * and widths (avx512/flash_narrow.c, avx512/flash_codes.c), the walk over parts (lower/attention/flash_decode.c). */
#include "flash_heads_codes.h"
#include "flash_heads_halves.h"

/* A block of keys of all heads, then its values; 64 keys ahead everything is prefetched into L2, keys while keys are
 * computed. (Values of this block while its keys are computed, which is half as far: 24.7 instead of 20.8 ns a key from
 * memory, 7 rows of 64.) Keys are transposed while the keys before them are computed: shuffles, conversions and loads
 * run beside products. Cycles for a key of a head from L1, 7 rows of 64 in f16, where products alone take 28 and 28:
 * keys 29.8, powers 4.9, values 28.9.
 *
 * GCC keeps sums in registers only while the loop around them has no branch beside its own: with a branch at the end of
 * what is prefetched, keys took 37 cycles and values 36. */

typedef union turned_keys {
    halves halves;
    turned_block codes;
} turned_keys;

/* turned: `now` says which of both places has the keys that are computed next. */
typedef struct walk {
    const agk_flash_tile *t;
    head *heads;
    turned_keys *turned;
    int64_t n_heads, first;
    int now;
} walk;

/* -- keys: n of a block that lie at k, of `left` that this call computes. Meanwhile lines of the next block are
 * prefetched, in the order of memory. */

AGK_INLINE void half_keys(int type, int rows, walk *w, int64_t n, int64_t left, const char *k)
{
    const int64_t step = w->t->k_step, bytes = step / w->n_heads, d = w->t->d;
    const char *ask = k + KEYS * step;
    for (int64_t j = 0; j < n; j += UNIT, k += UNIT * step) {
        for (int64_t h = 0; h < w->n_heads; ++h, ask += UNIT * bytes) {
            const char *next = h + 1 < w->n_heads ? k + (h + 1) * bytes : j + UNIT < left ? k + UNIT * step : k;
            turned_keys *keys = &w->turned[w->now], *to = &w->turned[1 - w->now];
            vf x[MOST_ROWS][PAIR];
            dot_halves(type, rows, d, w->heads[h].q, &keys->halves, next, step, &to->halves, ask, x);
            powers_of(rows, PAIR, &w->t[h], &w->heads[h], w->first + j, j, x);
            w->now = 1 - w->now;
        }
    }
}

AGK_INLINE void quad_keys(int type, int rows, walk *w, int64_t n, const char *k)
{
    const int64_t step = w->t->k_step, bytes = step / w->n_heads, d = w->t->d;
    const char *ask = k + KEYS * step;
    for (int64_t j = 0; j < n; j += TURNED, k += TURNED * step) {
        for (int64_t h = 0; h < w->n_heads; ++h, ask += TURNED * bytes) {
            vf x[MOST_ROWS][PAIR];
            dot_quads(type, rows, d, w->heads[h].q, k + h * bytes, step, ask, x);
            powers_of(rows, 1, &w->t[h], &w->heads[h], w->first + j, j, x);
        }
    }
}

AGK_INLINE void code_keys(int type, int rows, walk *w, int64_t n, int64_t left, const char *k)
{
    const int64_t step = w->t->k_step, blocks = w->t->d / V_BLOCK, size = bytes_of(type, V_BLOCK);
    const char *ask = k + KEYS * step;
    for (int64_t j = 0; j < n; j += TURNED, k += TURNED * step) {
        const char *at = k;
        for (int64_t h = 0; h < w->n_heads; ++h) {
            const head *its = &w->heads[h];
            const int32_t *q = (const int32_t *)(const void *)its->q;
            vf x[MOST_ROWS][PAIR];
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) x[r][0] = v_zero();
#pragma GCC unroll 1
            for (int64_t b = 0; b < blocks; ++b, q += DWORDS * PLANES * rows, ask += TURNED * size) {
                turned_keys *keys = &w->turned[w->now], *to = &w->turned[1 - w->now];
                at += size;
                if (b + 1 == blocks && h + 1 == w->n_heads) at = j + TURNED < left ? k + TURNED * step : k;
                dot_block(type, rows, q, its->codes.off + b, blocks, &keys->codes, at, step, &to->codes, ask, x);
                w->now = 1 - w->now;
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) x[r][0] = times(x[r][0], &its->scale[r]);
            powers_of(rows, 1, &w->t[h], &w->heads[h], w->first + j, j, x);
        }
    }
}

AGK_INLINE void values(int type, int rows, walk *w, int64_t n, const char *v)
{
    const int64_t step = w->t->v_step, bytes = step / w->n_heads, dv = w->t->dv, part = wide(rows) * VF;
    for (int64_t h = 0; h < w->n_heads; ++h) {
        const head *its = &w->heads[h];
        const float *shrink = its->shrunk ? its->f.shrink : NULL;
        for (int64_t i = 0; i < dv; i += part) {
            const int64_t at = h * bytes + bytes_of(type, i);
            add_values(type, rows, dv, step, n, its->p, v + at, shrink, v + KEYS * step + n * at, its->f.o + i);
        }
    }
}

/* -- queries in the order in which they are read */

static void side_by_side(const agk_flash_tile *t, float *to) /* [d][rows] or [d / 16][rows][16], times the scale */
{
    const vf scale = v_set(scale_of_tile(t));
    for (int64_t i = 0; i < t->d && t->n_rows <= ROWS; i += VF) {
        for (int64_t r = 0; r < t->n_rows; ++r, to += VF) {
            v_store(to, v_load((const float *)(const void *)(t->q + r * t->q_step) + i) * scale);
        }
    }
    if (t->n_rows <= ROWS) return;
    for (int64_t i = 0; i < t->d; i += VF) {
        vf x[VF];
        for (int r = 0; r < VF; ++r) {
            const char *row = t->q + (r < t->n_rows ? r : 0) * t->q_step;
            x[r] = v_load((const float *)(const void *)row + i) * scale;
        }
        v_transpose(x);
        for (int j = 0; j < VF; ++j, to += t->n_rows) v_store_n(to, x[j], t->n_rows);
    }
}

static void planes_side_by_side(const agk_flash_tile *t, const codes *c, float *q) /* [d / 4][rows][3] */
{
    int32_t *to = (int32_t *)(void *)q;
    for (int64_t i = 0; i < t->d; i += QUAD) {
        for (int64_t r = 0; r < t->n_rows; ++r, to += PLANES) memcpy(to, c->planes + r * t->d + i, PLANES * sizeof *to);
    }
}

static void open_head(const agk_flash_tile *t, head *h)
{
    h->f = agk_flash_narrow_of(t);
    h->codes = codes_of(t);
    h->p = h->f.s;
    h->fresh = h->shrunk = false;
    float *q = (float *)(void *)(h->codes.planes + t->n_rows * t->d);
    h->q = q;
    if (v_in_blocks(t->k_type))
        planes_side_by_side(t, &h->codes, q);
    else
        side_by_side(t, q);
    for (int64_t r = 0; r < t->n_rows; ++r) {
        if (v_in_blocks(t->k_type)) h->scale[r] = h->codes.scale[r] * scale_of_tile(t);
        h->safe[r] = safe_of(h->f.max[r]);
        h->fresh = h->fresh || !(h->f.max[r] > -__builtin_inff());
        h->f.shrink[r] = 1.0f;
        v_store(h->sum + r * VF, v_zero());
        h->sum[r * VF] = h->f.sum[r];
    }
}

/* -- a block */

typedef void keys_fn(walk *w, int64_t n, int64_t left, const char *k);
typedef void values_fn(walk *w, int64_t n, const char *v);

#define PARTS_OF(name, TYPE, rows) \
    static void keys_##name##_##rows(walk *w, int64_t n, int64_t left, const char *k) \
    { \
        if (v_in_blocks(AGK_##TYPE)) \
            code_keys(AGK_##TYPE, rows, w, n, left, k); \
        else if (rows <= ROWS) \
            quad_keys(AGK_##TYPE, rows, w, n, k); \
        else \
            half_keys(AGK_##TYPE, rows, w, n, left, k); \
    } \
    static void values_##name##_##rows(walk *w, int64_t n, const char *v) \
    { \
        values(AGK_##TYPE, rows, w, n, v); \
    }
#define TYPES_OF(rows) AGK_EACH_TYPE(PARTS_OF, rows)
AGK_EACH_ROWS(TYPES_OF)

AGK_FIND_PARTS(keys_fn, values_fn)

int64_t agk_flash_heads_amd512(const agk_flash_tile *t, int64_t heads, const agk_flash_rows *x)
{
    const int64_t rows = t->n_rows, n = x->n - x->n % UNIT;
    const bool in_blocks = v_in_blocks(t->k_type);
    if (rows > MOST_ROWS || heads > MOST_HEADS || n == 0) return 0;
    keys_fn *keys = keys_of(t->k_type, rows);
    values_fn *its_values = values_of(t->v_type, rows);
    if (keys == NULL || its_values == NULL) return 0;
    if (t->d % V_BLOCK != 0 || t->dv % (wide((int)rows) * VF) != 0 || (!in_blocks && rows > ROWS && t->d > MOST_WIDE))
        return 0;
    turned_keys turned[2];
    head its[MOST_HEADS];
    for (int64_t h = 0; h < heads; ++h) open_head(&t[h], &its[h]);
    walk w = {.t = t, .heads = its, .turned = turned, .n_heads = heads, .first = x->first};
    if (in_blocks)
        turn_codes(t->k_type, x->k, t->k_step, &turned[0].codes);
    else if (rows > ROWS)
        turn_halves(t->d, x->k, t->k_step, &turned[0].halves);
    for (int64_t j = 0; j < n; j += KEYS) {
        const int64_t some = n - j < KEYS ? n - j : KEYS;
        keys(&w, some, n - j, x->k + j * t->k_step);
        its_values(&w, some, x->v + j * t->v_step);
        w.first += some;
        for (int64_t h = 0; h < heads; ++h) {
            if (!its[h].shrunk) continue;
            its[h].shrunk = false;
            for (int64_t r = 0; r < rows; ++r) its[h].f.shrink[r] = 1.0f;
        }
    }
    for (int64_t h = 0; h < heads; ++h) {
        for (int64_t r = 0; r < rows; ++r) its[h].f.sum[r] = v_sum(v_load(its[h].sum + r * VF));
    }
    return n;
}
