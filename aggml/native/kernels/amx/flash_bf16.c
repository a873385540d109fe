/* flash_attn_ext of bf16 on AMX: 32 rows, 128 keys at a time; products of tiles are interleaved with exponentials.
 *
 * Not here: more terms (flash_terms.c), panels (flash_bf16_pack.c), steps (lower/attention/). */

/* S = Q K^T and O = P V have rows of Q in the lines of tiles, so only keys are transposed. Tiles and vector units work
 * in parallel if their instructions are interleaved: a step of products (four tiles of sums, 32 deep) is followed by
 * exponentials of some rows of S. While S of one block is computed, S of the chunks before it becomes P, and the
 * block before that is added to O. So the end of one tile of rows overlaps the next tile. The maximum of a whole row
 * is not computed. Its place is taken by the maximum of the first 32 keys that the row sees: a bf16 has the range of
 * an f32, so P may be 2^40. Rows whose sums go beyond that are computed in lanes, as are values above 2^64 and
 * values that are not finite. exp2 takes 8 instructions, with an error of 7.5e-5, half of which is common to all of
 * a row. */
#include "flash_bf16.h"

/* -- rows of the result ----------------------------------------------------------------------------------------- */

AGK_INLINE void put_row(engine *e)
{
    const int64_t r = e->put.row++;
    float *out = (float *)(void *)(e->put.out + r * e->put.step);
    const float *o = e->o + 16 * r;
    const vf scale = v_set(e->put.scale[r]);
    for (int64_t i = 0; i < e->put.dv; i += 16) {
        const int64_t left = e->put.dv - i;
        const vf x = _mm512_load_ps(o + i / 16 * 512) * scale;
        if (left >= 16)
            v_store(out + i, x);
        else
            v_store_n(out + i, x, left);
    }
}

/* Prefetches lines that are needed soon: row i of the result, and of the next tile of Q. They are far from L1, and
 * far apart. */
AGK_INLINE void fetch_row(const agk_flash_tile *t, int64_t i)
{
    if (i < t->n_rows) {
        for (int64_t j = 0; j < t->dv; j += 16) __builtin_prefetch(t->out + i * t->out_step + 4 * j, 1, 2);
    }
    /* behind the last tile of a head, this is a row of another head */
    const uintptr_t next = (uintptr_t)t->q + (uintptr_t)((32 + i) * t->q_step);
    for (int64_t j = 0; j < t->d; j += 16) _mm_prefetch((const char *)(next + (uintptr_t)(4 * j)), _MM_HINT_T1);
}

/* The vector work that is interleaved with a step of products. */
AGK_INLINE void beside(engine *e)
{
    e->credit += e->rate;
    if (e->credit >= 64) {
        const int rows = e->credit / 64 * 4;
        e->credit -= 16 * rows;
        some_rows(e, rows);
    }
    if (e->put.row < e->put.rows) put_row(e);
    if (e->fetched < 32) fetch_row(e->sides[e->side ^ 1].t, e->fetched++);
}

/* -- products --------------------------------------------------------------------------------------------------- */

/* Tiles 0 and 1 are the two halves of the width of rows 0 to 15, tiles 2 and 3 those of the other rows; so a row is
 * contiguous. */
#define PLACE(i) (256 * ((i) % 2 * 2 + (i) / 2))
#define LEAVE(i) _tile_stored(i, home + PLACE(i), 64)
#define ENTER(i) \
    do { \
        if (zero) \
            _tile_zero(i); \
        else \
            _tile_loadd(i, sums + PLACE(i), 64); \
    } while (0)

/* The first step of a product: each sum of the product before leaves its tile just before the tile is needed. */
AGK_INLINE void first_step(engine *e, bool two, bool zero, const char *a, const char *b, float *sums)
{
    float *home = e->home;
    _tile_loadd(4, a, 64);
    _tile_stream_loadd(6, b, 64);
    LEAVE(0);
    ENTER(0);
    _tile_dpbf16ps(0, 4, 6);
    _tile_stream_loadd(7, b + TILE, 64);
    LEAVE(1);
    ENTER(1);
    _tile_dpbf16ps(1, 4, 7);
    if (two) _tile_loadd(5, a + TILE, 64);
    if (e->home_two) LEAVE(2);
    if (two) {
        ENTER(2);
        _tile_dpbf16ps(2, 5, 6);
    }
    if (e->home_two) LEAVE(3);
    if (two) {
        ENTER(3);
        _tile_dpbf16ps(3, 5, 7);
    }
    came_home(e);
    e->home = sums;
    e->home_two = two;
}

AGK_INLINE void step(bool two, const char *a, const char *b)
{
    _tile_loadd(4, a, 64);
    _tile_stream_loadd(6, b, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (two) {
        _tile_loadd(5, a + TILE, 64);
        _tile_dpbf16ps(2, 5, 6);
    }
    _tile_stream_loadd(7, b + TILE, 64);
    _tile_dpbf16ps(1, 4, 7);
    if (two) _tile_dpbf16ps(3, 5, 7);
}

AGK_INLINE void product(engine *e, bool two, bool zero, int64_t steps, const char *a, const char *b, float *sums)
{
    first_step(e, two, zero, a, b, sums);
    beside(e);
    for (int64_t i = 1; i < steps; ++i) {
        step(two, a + i * PANEL, b + i * PANEL);
        beside(e);
    }
}

static void bring_home(engine *e)
{
    float *home = e->home;
    LEAVE(0);
    LEAVE(1);
    if (e->home_two) {
        LEAVE(2);
        LEAVE(3);
    }
    came_home(e);
    e->home_chunk = e->home_two = false;
    e->home = e->s + SLOTS * SUMS; /* any address will do, since nothing reads these sums */
}

AGK_INLINE void scores(engine *e, side *w, char *p, int64_t panel)
{
    const int64_t wide = agk_flash_up(w->t->d) / 32;
    while (e->begun - e->done >= SLOTS) some_rows(e, 32);
    float *s = e->s + e->begun++ % SLOTS * SUMS;
    product(e, w->rows > 16, true, wide, e->q, w->x.k + panel * wide * PANEL, s);
    e->home_chunk = true;
    e->made = (chunk){.of = w, .s = s, .p = p, .key = 32 * panel};
}

AGK_INLINE void values(engine *e, const block *b, int64_t i)
{
    const int64_t all = agk_flash_up(b->of->x.n_keys) / 32;
    if (e->done != b->turn && e->home_chunk) bring_home(e);
    while (e->done - b->turn < 0) some_rows(e, 32);
    if (b->first && i == 0) {
        while (e->put.row < e->put.rows) put_row(e); /* O begins anew */
    }
    product(e, b->of->rows > 16, b->first, b->panels, b->p, b->of->x.v + (i * all + b->panel) * PANEL, e->o + i * SUMS);
    e->home_chunk = false;
}

/* Computes S of the next block, while P of the last chunks and O of the block before are computed. Either may be
 * missing. */
static void advance(engine *e, const block *next)
{
    const block before = e->before;
    const int64_t chunks = next->of != NULL ? next->panels : 0;
    const int64_t groups = before.of != NULL ? agk_flash_up(before.of->t->dv) / 32 : 0;
    const int64_t wide = next->of != NULL ? agk_flash_up(next->of->t->d) / 32 : 0;
    const int64_t steps = chunks * wide + groups * (groups > 0 ? before.panels : 0);
    const int64_t work = next->of != NULL ? chunks * next->of->rows : 0;
    e->rate = steps > 0 ? (int)((16 * work + steps - 1) / steps) : 0;
    int64_t group = 0;
    for (int64_t i = 0; i < chunks; ++i) {
        scores(e, next->of, next->p + i * PANEL, next->panel + i);
        for (; group * chunks < (i + 1) * groups && (group + 1) * chunks <= (i + 1) * groups; ++group) {
            values(e, &before, group);
        }
    }
    for (; group < groups; ++group) values(e, &before, group);
    e->before = *next;
    e->before.turn = e->begun;
}

/* -- a tile of rows --------------------------------------------------------------------------------------------- */

static void pack_rows(const agk_flash_tile *t, int64_t rows, char *out)
{
    const vf scale = v_set(t->softcap > 0.0f ? t->scale / t->softcap : t->scale * 1.44269504f);
    for (int64_t r = 0; r < rows; ++r) {
        const float *q = (const float *)(const void *)(t->q + r * t->q_step);
        char *to = out + 64 * r;
        for (int64_t i = 0; i < t->d; i += 32, to += PANEL) {
            const int64_t left = t->d - i;
            vf low = v_zero(), high = v_zero();
            if (r < t->n_rows && left >= 32) {
                low = v_load(q + i) * scale;
                high = v_load(q + i + 16) * scale;
            } else if (r < t->n_rows) {
                low = v_load_n(q + i, left < 16 ? left : 16) * scale;
                if (left > 16) high = v_load_n(q + i + 16, left < 32 ? left - 16 : 16) * scale;
            }
            _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
    }
}

/* The factors for the rows of O; false if the rows must be computed in lanes. */
static bool finish(engine *e, const side *w)
{
    const agk_flash_tile *t = w->t;
    bool fine = true;
    for (int h = 0; 16 * h < t->n_rows; ++h) {
        vf m[16];
        AGK_UNROLL for (int j = 0; j < 16; ++j) m[j] = _mm512_load_ps(w->sum + 256 * h + 16 * j);
        v_transpose(m);
        AGK_UNROLL for (int i = 8; i > 0; i /= 2)
        {
            AGK_UNROLL for (int j = 0; j < i; ++j) m[j] = m[j] + m[j + i];
        }
        const int64_t rows = t->n_rows - 16 * h < 16 ? t->n_rows - 16 * h : 16;
        const __mmask16 there = v_first(rows);
        fine = fine && (v_le(m[0], v_set(0x1p40f)) & there) == there;
        const vf ref = v_load(w->ref + 16 * h) * v_set(0.693147181f);
        const vf total = m[0] + v_exp(v_load(t->sink + 16 * h) - ref);
        v_store(e->put.scale + 16 * h, v_select(v_eq(m[0], v_zero()), v_zero(), v_set(1.0f) / total));
    }
    if (!fine) return false;
    e->put.out = t->out;
    e->put.step = t->out_step;
    e->put.row = 0;
    e->put.rows = t->n_rows;
    e->put.dv = t->dv;
    return true;
}

static void begin(engine *e)
{
    e->before.of = NULL;
    e->begun = e->stored = e->done = e->row = 0;
    e->side = e->half = e->credit = e->rate = 0;
    e->put.row = e->put.rows = 0;
    e->home = e->s + SLOTS * SUMS;
    e->home_two = e->home_chunk = false;
    agk_tiles_configure(
        (const agk_tile_shape[8]){{16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}});
}

/* Goes on by one block; returns whether the tile of rows that may have ended with it is correct. */
static bool further(engine *e, const block *next)
{
    const block before = e->before;
    advance(e, next);
    if (before.of == NULL || !before.last) return true;
    bring_home(e);
    return finish(e, before.of);
}

bool agk_flash_bf16_tile_amx(const agk_flash_tile *t, const agk_flash_terms *x, bool first, void *state)
{
    engine *e = state;
    const block none = {.of = NULL};
    if (first) {
        char *at = (char *)state + HEAD;
        e->sides[0].sum = (float *)(void *)at;
        e->sides[1].sum = e->sides[0].sum + 512;
        e->q = at + 4096;
        e->p[0] = e->q + 64 * agk_flash_up(t->d);
        e->p[1] = e->p[0] + BLOCK * PANEL;
        e->s = (float *)(void *)(e->p[1] + BLOCK * PANEL);
        e->o = e->s + (SLOTS + 1) * SUMS;
        begin(e);
    }
    if (t == NULL) {
        e->fetched = 32;
        const bool fine = further(e, &none);
        while (e->put.row < e->put.rows) put_row(e);
        _tile_release();
        return fine;
    }
    side *w = &e->sides[e->side];
    e->side ^= 1;
    w->t = t;
    e->fetched = 0;
    w->x = *x;
    w->rows = t->n_rows > 16 ? 32 : 16;
    w->unset = t->n_rows < 32 ? (1u << t->n_rows) - 1 : ~0u;
    for (int64_t i = 0; i < 32; ++i) w->ref[i] = 0.0f;
    for (int64_t i = 0; i < 512; i += 16) v_store(w->sum + i, v_zero());
    pack_rows(t, w->rows, e->q);
    bool fine = true;
    const int64_t from = x->begin / 32, to = (x->end + 31) / 32;
    for (int64_t panel = from; panel < to; panel += BLOCK) {
        const block next = {.of = w,
                            .p = e->p[e->half],
                            .panel = panel,
                            .panels = to - panel < BLOCK ? to - panel : BLOCK,
                            .first = panel == from,
                            .last = panel + BLOCK >= to};
        e->half ^= 1;
        fine = further(e, &next) && fine;
    }
    return fine;
}
