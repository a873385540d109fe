/* ag_copy_simplify and ag_copy_run against a copy element by element, for random extents and strides. */
#include "rig.h"

#define AREA 65536

static uint8_t source[AREA], target[AREA], expected[AREA];

static void naive(const ag_copy *c, uint8_t *dst)
{
    for (int64_t l = 0; l < c->ne[3]; ++l)
        for (int64_t k = 0; k < c->ne[2]; ++k)
            for (int64_t j = 0; j < c->ne[1]; ++j)
                for (int64_t i = 0; i < c->ne[0]; ++i)
                    for (size_t b = 0; b < c->item; ++b) {
                        const int64_t d = i * c->dst_nb[0] + j * c->dst_nb[1] + k * c->dst_nb[2] + l * c->dst_nb[3];
                        const int64_t s = i * c->src_nb[0] + j * c->src_nb[1] + k * c->src_nb[2] + l * c->src_nb[3];
                        dst[d + (int64_t)b] = c->src[s + (int64_t)b];
                    }
}

/* Strides without overlap: the dimensions in random order, each padded now and then. */
static void layout(rng *r, const int64_t ne[4], size_t item, int64_t nb[4])
{
    int order[4] = {0, 1, 2, 3};
    for (uint32_t i = 3; i > 0 && rng_below(r, 2); --i) {
        uint32_t j = rng_below(r, i + 1);
        int t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    int64_t step = (int64_t)item;
    for (int i = 0; i < 4; ++i) {
        if (rng_below(r, 4) == 0) step += (int64_t)rng_below(r, 9);
        nb[order[i]] = step;
        step *= ne[order[i]] > 0 ? ne[order[i]] : 1;
    }
}

static int64_t extent(const int64_t ne[4], const int64_t nb[4], size_t item)
{
    int64_t end = (int64_t)item;
    for (int i = 0; i < 4; ++i) end += (ne[i] - 1) * nb[i];
    return end;
}

/* Makes strides negative now and then, as numpy's x[::-1]; such a dimension starts at its far end. */
static void flip(rng *r, const int64_t ne[4], int64_t nb[4], int64_t *start)
{
    for (int i = 0; i < 4; ++i) {
        if (rng_below(r, 8) != 0) continue;
        *start += (ne[i] - 1) * nb[i];
        nb[i] = -nb[i];
    }
}

static void one(rng *r)
{
    static const size_t items[] = {1, 2, 3, 4, 8, 12, 18, 34};
    ag_copy c = {.item = items[rng_below(r, 8)]};
    for (int i = 0; i < 4; ++i) c.ne[i] = rng_below(r, 3) == 0 ? 1 : 1 + (int64_t)rng_below(r, 6);
    if (rng_below(r, 50) == 0) c.ne[rng_below(r, 4)] = 0;
    layout(r, c.ne, c.item, c.dst_nb);
    layout(r, c.ne, c.item, c.src_nb);
    int64_t d = 0, s = 0;
    if (c.ne[0] * c.ne[1] * c.ne[2] * c.ne[3] != 0) {
        if (extent(c.ne, c.dst_nb, c.item) > AREA || extent(c.ne, c.src_nb, c.item) > AREA) return;
        flip(r, c.ne, c.dst_nb, &d);
        flip(r, c.ne, c.src_nb, &s);
    }
    c.dst = target + d;
    c.src = source + s;
    memset(target, 0xee, sizeof target);
    memset(expected, 0xee, sizeof expected);
    naive(&c, expected + d);
    if (rng_below(r, 4) != 0) ag_copy_simplify(&c);
    ag_copy_run(&c);
    CHECK(memcmp(target, expected, sizeof target) == 0);
}

static void contiguous_is_one_item(void)
{
    ag_copy c = {.dst = target, .src = source, .ne = {8, 4, 2, 3}, .item = 4};
    for (int i = 0; i < 4; ++i) c.dst_nb[i] = c.src_nb[i] = i == 0 ? 4 : c.dst_nb[i - 1] * c.ne[i - 1];
    ag_copy_simplify(&c);
    CHECK_EQ(c.item, 8 * 4 * 2 * 3 * 4);
    for (int i = 0; i < 4; ++i) CHECK_EQ(c.ne[i], 1);
}

static void overlapping_neighbours_move(void)
{
    uint8_t bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    ag_copy c = {
        .dst = bytes + 1, .src = bytes, .ne = {7, 1, 1, 1}, .dst_nb = {1, 7, 7, 7}, .src_nb = {1, 7, 7, 7}, .item = 1};
    ag_copy_simplify(&c);
    ag_copy_run(&c);
    for (int i = 1; i < 8; ++i) CHECK_EQ(bytes[i], i);
}

/* Copies so long that they are done in pieces, or past the caches; at any alignment; and between overlapping ranges. */
static void long_runs(rng *r)
{
    enum { ROOM = 36 << 20, SHORT = 3 << 20, LONG = 33 << 20, GUARD = 64 };
    uint8_t *from = malloc(ROOM), *to = malloc(ROOM);
    CHECK(from != NULL && to != NULL);
    for (size_t i = 0; i < ROOM; i += 8) memcpy(from + i, &(uint64_t){rng_next(r)}, 8);
    for (int i = 0; i < 8; ++i) {
        const size_t s = rng_below(r, GUARD), d = GUARD + rng_below(r, GUARD);
        const size_t n = (i % 2 == 0 ? LONG : SHORT) + rng_below(r, 1 << 20);
        memset(to, 0xee, ROOM);
        ag_copy c = {.dst = to + d, .src = from + s, .ne = {1, 1, 1, 1}, .item = n};
        ag_copy_run(&c);
        CHECK(memcmp(to + d, from + s, n) == 0);
        CHECK(to[d - 1] == 0xee && to[d + n] == 0xee);
    }
    for (int i = 0; i < 2; ++i) { /* forwards and backwards, by less than the size of a piece */
        const size_t s = i == 0 ? 0 : 1000, d = i == 0 ? 1000 : 0;
        memcpy(to, from, ROOM);
        ag_copy c = {.dst = to + d, .src = to + s, .ne = {1, 1, 1, 1}, .item = LONG};
        ag_copy_run(&c);
        CHECK(memcmp(to + d, from + s, LONG) == 0);
    }
    free(from);
    free(to);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    rng r = rng_new(0);
    for (int i = 0; i < AREA; ++i) source[i] = (uint8_t)rng_next(&r);
    for (int i = 0; i < SCALED(20000); ++i) one(&r);
    contiguous_is_one_item();
    overlapping_neighbours_move();
    long_runs(&r);
    return 0;
}
