/* The state that flash_bf16.c keeps for the two tiles of rows that are under way together, and the arithmetic of one
 * tile that is interleaved with the other's products on the matrix tiles. Not here: the products and their order
 * (flash_bf16.c). */
#ifndef AGK_AMX_FLASH_BF16_H
#define AGK_AMX_FLASH_BF16_H

#include "kernels/flash.h"
#include "tiles.h"

#include "kernels/avx512/math.h"
#include "kernels/vec/math.h"

enum {
    TILE = 1024,
    PANEL = 2 * TILE,
    BLOCK = AGK_FLASH_BF16_PANELS,
    SLOTS = AGK_FLASH_BF16_SLOTS,
    SUMS = 1024, /* floats of four tiles */
    HEAD = AGK_FLASH_BF16_HEAD,
};

/* -- work under way -------------------------------------------------------------------------------------------- */

/* A tile of rows. */
typedef struct side {
    const agk_flash_tile *t;
    agk_flash_terms x;
    float *sum;     /* [32][16] */
    float ref[32];  /* the reference of P, times log2 e */
    uint32_t unset; /* rows that have no reference yet */
    int64_t rows;   /* 16 or 32 */
} side;

/* 32 keys of a tile of rows: S, which will become P. */
typedef struct chunk {
    side *of;
    float *s;
    char *p;
    int64_t key;
} chunk;

/* Up to 128 keys of a tile of rows: P, which will be multiplied into O. */
typedef struct block {
    side *of; /* NULL: none */
    char *p;
    int64_t panel, panels;
    bool first, last;
    int turn; /* chunks that were begun up to its end */
} block;

typedef struct engine {
    side sides[2];
    block before;
    char *q, *p[2];
    float *s, *o, *home; /* where the sums that are in the tiles will be stored */
    bool home_two, home_chunk;
    chunk made; /* the chunk, if home is S */
    chunk waiting[SLOTS];
    int begun, stored, done; /* chunks */
    int row;                 /* the row that comes next in chunk number `done` */
    int side, half;
    /* rows of S that should be done by now, and the increase with each step of products; in sixteenths */
    int credit, rate;
    int64_t fetched; /* rows of the result and of the next Q that were prefetched */
    struct {
        char *out;
        int64_t step, row, rows, dv;
        float scale[32];
    } put; /* rows of O that are complete */
} engine;

_Static_assert(sizeof(engine) <= HEAD, "an engine");

AGK_INLINE vf exp2_short(vf y)
{
    const __mmask16 normal = _mm512_cmp_ps_mask(y, v_set(-125.0f), _CMP_NLT_UQ);
    const vf r = _mm512_reduce_ps(y, 1); /* y - floor(y) */
    vf p = v_fma(v_set(0.0780245215f), r, v_set(0.226067156f));
    p = v_fma(p, r, v_set(0.695833564f));
    p = v_fma(p, r, v_set(0.999925196f));
    return _mm512_maskz_scalef_ps(normal, p, y); /* a subnormal result costs 150 cycles, and masked keys are -inf */
}

/* Exponentials of `rows` rows, a multiple of 4, or of as many as there are. */
AGK_INLINE void some_rows(engine *e, int rows)
{
    while (rows > 0 && e->done != e->stored) {
        const chunk *c = &e->waiting[e->done % SLOTS];
        float *sum = c->of->sum;
        const float *ref = c->of->ref;
        int to = e->row + rows < c->of->rows ? e->row + rows : (int)c->of->rows;
        rows -= to - e->row;
        for (int r = e->row; r < to; r += 4) {
            AGK_UNROLL for (int i = 0; i < 4; ++i)
            {
                const int at = r + i;
                const float *s = c->s + 16 * at;
                const vf max = v_set(ref[at]);
                const vf a = exp2_short(_mm512_load_ps(s) - max), b = exp2_short(_mm512_load_ps(s + 512) - max);
                _mm512_store_ps(sum + 16 * at, _mm512_load_ps(sum + 16 * at) + (a + b));
                _mm512_store_si512(c->p + 64 * at, (__m512i)_mm512_cvtne2ps_pbh(b, a));
            }
        }
        e->row = to;
        if (to == c->of->rows) {
            e->row = 0;
            ++e->done;
        }
    }
}

/* Softcap, mask, and keys that are left out. */
static void finish_logits(const side *w, int64_t first, float *s)
{
    const agk_flash_tile *t = w->t;
    const float log2e = 1.44269504f;
    const vf low = v_set(-__builtin_inff());
    const int64_t left = w->x.n_keys - first;
    const __mmask32 there = left < 32 ? (1u << left) - 1 : ~0u;
    const bool clear = t->mask_form == AGK_FLASH_NO_MASK || (w->x.clear_begin <= first && first + 32 <= w->x.clear_end);
    __mmask32 seen = there;
    if (first < w->x.begin) seen &= ~0u << (w->x.begin - first);
    if (w->x.end < first + 32) seen &= (1u << (w->x.end - first)) - 1;
    for (int64_t r = 0; r < w->rows && r < t->n_rows; ++r) {
        float *at = s + 16 * r;
        const char *mask = t->mask + r * t->mask_step + 2 * first;
        const vf slope = v_set(t->slope[r] * log2e);
        AGK_UNROLL for (int h = 0; h < 2; ++h)
        {
            __mmask16 counts = (__mmask16)(seen >> (16 * h));
            vf x = _mm512_load_ps(at + 512 * h);
            if (t->softcap > 0.0f) x = v_set(t->softcap * log2e) * v_tanh(x);
            if (!clear) {
                const vf m = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16((__mmask16)(there >> (16 * h)), mask + 32 * h));
                x = v_fma(m, slope, x);
                counts &= (__mmask16)~v_eq(m, low); /* a masked key is left out even if it is NaN */
            }
            _mm512_store_ps(at + 512 * h, _mm512_mask_mov_ps(low, counts, x));
        }
    }
}

/* The maximum of a row over the first keys that it sees. */
static void set_refs(side *w, const float *s)
{
    for (int h = 0; 16 * h < w->rows; ++h) {
        const uint32_t unset = (w->unset >> (16 * h)) & 0xffff;
        if (unset == 0) continue;
        vf m[16];
        AGK_UNROLL for (int j = 0; j < 16; ++j)
        {
            m[j] = v_max(_mm512_load_ps(s + 256 * h + 16 * j), _mm512_load_ps(s + 512 + 256 * h + 16 * j));
        }
        v_transpose(m);
        AGK_UNROLL for (int i = 8; i > 0; i /= 2)
        {
            AGK_UNROLL for (int j = 0; j < i; ++j) m[j] = v_max(m[j], m[j + i]);
        }
        const __mmask16 found = (__mmask16)(unset & ~(uint32_t)v_eq(m[0], v_set(-__builtin_inff())));
        _mm512_mask_storeu_ps(w->ref + 16 * h, found, m[0]);
        w->unset &= ~((uint32_t)found << (16 * h));
    }
}

/* Called when the sums that were in the tiles have been stored. */
AGK_INLINE void came_home(engine *e)
{
    if (!e->home_chunk) return;
    side *w = e->made.of;
    const int64_t key = e->made.key;
    const bool clear = w->t->mask_form == AGK_FLASH_NO_MASK || (w->x.clear_begin <= key && key + 32 <= w->x.clear_end);
    if (!clear || w->t->softcap > 0.0f || key < w->x.begin || key + 32 > w->x.end) finish_logits(w, key, e->made.s);
    if (w->unset != 0) set_refs(w, e->made.s);
    e->waiting[e->stored++ % SLOTS] = e->made;
}

#endif
