/* Every variant of attention in bf16 on matrix tiles compared with the scalar kernel: tiles of rows that are
 * finished by the next call, masks that cut blocks, remainders that are left to lanes. Buffers have their exact
 * size, so that ASan sees any read or write beyond them. */
#include <math.h>
#include <string.h>

#include "check.h"
#include "variants.h"
#include "kernels/flash.h"
#include "table/kernel_types.h"

#define BOUND 5e-5 /* for the sum of squared errors: P and Q are rounded to bf16 */

enum { MOST_TILES = 8, NONE = 0xfc00 /* -inf */ };

typedef struct shape {
    int64_t d, dv, queries, keys;
    /* keys that a query sees. The last one is as far from the end of the keys as the query from the end of its tile;
     * 0: all keys, no mask */
    int64_t window;
    float softcap, huge; /* huge: a value of the last key, 0: none */
} shape;

static void *exact(int64_t n)
{
    void *p = malloc((size_t)n);
    CHECK(p != NULL);
    return p;
}

static float number(rng *r)
{
    return (float)rng_below(r, 2000001) / 500000.0f - 2.0f;
}

static float widened(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

static uint16_t *rows(rng *r, int64_t n)
{
    uint16_t *x = exact(2 * n);
    for (int64_t i = 0; i < n; ++i) {
        const float v = number(r);
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        x[i] = (uint16_t)(bits >> 16);
    }
    return x;
}

/* The result of the scalar kernel, which gets the keys first .. end - 1 one by one. */
static void expect(const shape *s, agk_flash_tile t, int64_t first, int64_t end, const uint16_t *k, const uint16_t *v,
                   float *out)
{
    float *state = bytes((size_t)agk_flash_state_floats(s->d, s->dv) * 4), *key = exact(4 * s->d),
          *value = exact(4 * s->dv);
    t.state = state;
    t.out = (char *)out;
    agk_flash_begin_scalar(&t);
    for (int64_t j = first; j < end; ++j) {
        for (int64_t i = 0; i < s->d; ++i) key[i] = widened(k[j * s->d + i]);
        for (int64_t i = 0; i < s->dv; ++i) value[i] = widened(v[j * s->dv + i]);
        agk_flash_block_scalar(&t, j, 1, key, value);
    }
    agk_flash_end_scalar(&t);
    free(state);
    free(key);
    free(value);
}

static void attend(rng *r, agk_flash_bf16_pack_fn *pack, agk_flash_bf16_tile_fn *tile, const shape *s)
{
    const int64_t panels = agk_flash_up(s->keys) / AGK_FLASH_PANEL, d = s->d, dv = s->dv;
    uint16_t *k = rows(r, s->keys * d), *v = rows(r, s->keys * dv), *mask = exact(2 * s->queries * s->keys);
    if (s->huge > 0.0f) {
        uint32_t bits;
        memcpy(&bits, &s->huge, sizeof bits);
        v[s->keys * dv - 1] = (uint16_t)(bits >> 16);
    }
    float *q = exact(4 * s->queries * d), *out = exact(4 * s->queries * dv), *expected = exact(4 * s->queries * dv);
    for (int64_t i = 0; i < s->queries * d; ++i) q[i] = number(r);
    char *k_panels = bytes(agk_flash_terms_k_bytes(1, s->keys, d)),
         *v_panels = bytes(agk_flash_terms_k_bytes(1, s->keys, dv));
    const size_t k_step = agk_flash_terms_k_bytes(1, AGK_FLASH_PANEL, d);
    const size_t v_step = agk_flash_terms_k_bytes(1, s->keys, AGK_FLASH_PANEL);
    bool fine = true;
    for (int64_t p = 0; p < panels; ++p) {
        const int64_t first = 32 * p, n = s->keys - first < 32 ? s->keys - first : 32;
        fine = pack(false, n, d, k + first * d, 2 * d, dv, v + first * dv, 2 * dv, k_panels + (size_t)p * k_step,
                    v_panels + p * 2048, v_step) &&
               fine;
    }
    CHECK(fine == !(s->huge > 0.0f));
    void *state = bytes(agk_flash_bf16_state_bytes(d, dv));
    agk_flash_tile t[MOST_TILES] = {0};
    int n = 0;
    for (int64_t first = 0; fine && first < s->queries; first += AGK_FLASH_TILE, ++n) {
        agk_flash_tile *x = &t[n];
        CHECK(n < MOST_TILES);
        *x = (agk_flash_tile){.d = d, .dv = dv, .q_step = 4 * d, .out_step = 4 * dv, .mask_step = 2 * s->keys};
        x->q = (const char *)(q + first * d);
        x->out = (char *)(out + first * dv);
        x->mask = (const char *)(mask + first * s->keys);
        x->n_rows = s->queries - first < AGK_FLASH_TILE ? s->queries - first : AGK_FLASH_TILE;
        x->scale = 1.0f / sqrtf((float)d);
        x->softcap = s->softcap;
        agk_flash_terms keys = {.terms = 1, .n_keys = s->keys, .end = s->keys, .clear_end = s->keys};
        keys.k = k_panels;
        keys.v = v_panels;
        if (s->window > 0) {
            keys.begin = s->keys;
            keys.end = keys.clear_end = 0;
            x->mask_form = AGK_FLASH_FULL_MASK;
        }
        for (int64_t i = 0; i < x->n_rows; ++i) {
            const int64_t to = s->keys - s->queries + first + i + 1, from = s->window < to ? to - s->window : 0;
            x->slope[i] = 1.0f;
            x->sink[i] = i % 3 == 0 ? 0.5f : -INFINITY;
            if (s->window == 0) continue;
            for (int64_t j = 0; j < s->keys; ++j) {
                const bool seen = j >= from && j < to;
                mask[(first + i) * s->keys + j] = seen ? (j % 7 == 0 ? 0x3c00 : 0) : NONE;
            }
            if (from < keys.begin) keys.begin = from;
            if (to > keys.end) keys.end = to;
        }
        CHECK(tile(x, &keys, n == 0, state)); /* this call also finishes the tile before */
        expect(s, *x, keys.begin, keys.end, k, v, expected + first * dv);
    }
    if (n > 0) CHECK(tile(NULL, NULL, false, state));
    double error = 0.0, all = 0.0;
    for (int64_t i = 0; n > 0 && i < s->queries * dv; ++i) {
        const double e = (double)expected[i], f = (double)out[i];
        error += (e - f) * (e - f);
        all += e * e;
    }
    CHECK(error <= BOUND * all);
    free(k);
    free(v);
    free(mask);
    free(q);
    free(out);
    free(expected);
    free(k_panels);
    free(v_panels);
    free(state);
}

int main(void)
{
    static const shape shapes[] = {
        {.d = 64, .dv = 64, .queries = 70, .keys = 300},
        {.d = 128, .dv = 128, .queries = 40, .keys = 520},
        {.d = 32, .dv = 32, .queries = 14, .keys = 14},
        {.d = 40, .dv = 17, .queries = 33, .keys = 65},
        {.d = 128, .dv = 32, .queries = 100, .keys = 129, .window = 40},
        {.d = 32, .dv = 96, .queries = 90, .keys = 400, .window = 300},
        {.d = 64, .dv = 64, .queries = 50, .keys = 50, .window = 50, .softcap = 3.0f},
        {.d = 64, .dv = 64, .queries = 1, .keys = 32},
        {.d = 64, .dv = 64, .queries = 32, .keys = 64, .huge = 1e20f},
    };
    rng r = rng_new(0);
    int n = 0;
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_flash_bf16_pack_fn *pack = (agk_flash_bf16_pack_fn *)variant(i, "flash_bf16_pack");
        for (size_t j = 0; pack != NULL && j < agk_n_variants; ++j) {
            agk_flash_bf16_tile_fn *tile = (agk_flash_bf16_tile_fn *)variant(j, "flash_bf16_tile");
            for (size_t s = 0; tile != NULL && s < sizeof shapes / sizeof *shapes; ++s)
                attend(&r, pack, tile, &shapes[s]);
            n += tile != NULL;
        }
    }
    printf("%d variants\n", n);
    return 0;
}
