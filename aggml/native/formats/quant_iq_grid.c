/* The codebooks of the IQ types, and the search tables of their quantizers, which are built at their first use.
 *
 * A code that is not a point has a list: the points at the smallest, second smallest ... distance from it, as many
 * distances (rings) as ggml takes for the type, ordered by distance and then by number. The order matters where two
 * points fit equally well. All sizes follow from the codebooks, so the tables are static and nothing can fail. */
#include <pthread.h>
#include <stdbool.h>

#include "quant_iq_grid.h"

#define LEVEL2(code, i) ((code) >> 2 * (i) & 3)
#define LEVEL3(code, i) ((code) >> 3 * (i) & 7)

/* The values of elements. */
#define IQ2(code, i) (uint8_t)(LEVEL2(code, i) == 0 ? 8 : LEVEL2(code, i) == 1 ? 25 : 43)
#define IQ1(code, i) (int8_t)(LEVEL2(code, i) - 1)
#define IQ3_XXS(code, i) (uint8_t)(LEVEL3(code, i) == 7 ? 62 : 8 * LEVEL3(code, i) + 4)
#define IQ3_S(code, i) (uint8_t)(2 * LEVEL3(code, i) + 1)
#define EIGHT(of, c) {of(c, 0), of(c, 1), of(c, 2), of(c, 3), of(c, 4), of(c, 5), of(c, 6), of(c, 7)},
#define FOUR(of, c) {of(c, 0), of(c, 1), of(c, 2), of(c, 3)},

#define P(code) EIGHT(IQ2, code)
const uint8_t agk_iq2_xxs_grid[256][8] = {
#define AGK_IQ2_XXS
#include "quant_iq_grid_2.def"
};
const uint8_t agk_iq2_xs_grid[512][8] = {
#define AGK_IQ2_XS
#include "quant_iq_grid_2.def"
};
const uint8_t agk_iq2_s_grid[1024][8] = {
#define AGK_IQ2_S
#include "quant_iq_grid_2.def"
};
#undef P
#define P(code) EIGHT(IQ1, code)
const int8_t agk_iq1_grid[2048][8] = {
#define AGK_IQ1
#include "quant_iq_grid_2.def"
};
#undef P
#define P(code) FOUR(IQ3_XXS, code)
const uint8_t agk_iq3_xxs_grid[256][4] = {
#define AGK_IQ3_XXS
#include "quant_iq_grid_3.def"
};
#undef P
#define P(code) FOUR(IQ3_S, code)
const uint8_t agk_iq3_s_grid[512][4] = {
#define AGK_IQ3_S
#include "quant_iq_grid_3.def"
};
#undef P

/* A code is split into two halves of 4 levels 0..2 or 2 levels 0..7: a distance is the sum of two table entries. */
enum { MAX_HALVES = 81, MAX_POINTS = 2048 };

typedef struct halves {
    int n;                                 /* 81 or 64 */
    uint16_t code[MAX_HALVES];             /* the levels, packed */
    uint8_t apart[MAX_HALVES][MAX_HALVES]; /* squared distance of two halves */
    uint8_t point[2][MAX_POINTS];          /* each point's halves */
    uint8_t distance[MAX_POINTS];          /* of each point from the current code, at most 196 */
} halves;

static int level(int half, int i, int levels)
{
    while (i-- > 0) half /= levels;
    return half % levels;
}

static void split(halves *h, const agk_iq_book *book)
{
    const int width = book->width / 2, levels = book->top + 1;
    h->n = 1;
    for (int i = 0; i < width; ++i) h->n *= levels;
    for (int a = 0; a < h->n; ++a) {
        h->code[a] = 0;
        for (int i = 0; i < width; ++i) h->code[a] |= (uint16_t)(level(a, i, levels) << book->bits * i);
        for (int b = 0; b < h->n; ++b) {
            int sum = 0;
            for (int i = 0; i < width; ++i) {
                const int step = level(a, i, levels) - level(b, i, levels);
                sum += step * step;
            }
            h->apart[a][b] = (uint8_t)sum;
        }
    }
    for (int p = 0; p < 2 * book->points; ++p) {
        const uint8_t *of = book->levels + p * width;
        int half = 0;
        for (int i = width - 1; i >= 0; --i) half = half * levels + of[i];
        h->point[p & 1][p >> 1] = (uint8_t)half;
    }
}

/* The points at the `rings` smallest distances; returns how many. */
static int list(halves *h, int points, int rings, int low, int high, uint16_t *found)
{
    int n = 0, last = -1;
    for (int p = 0; p < points; ++p) {
        h->distance[p] = (uint8_t)(h->apart[low][h->point[0][p]] + h->apart[high][h->point[1][p]]);
    }
    for (int ring = 0; ring < rings; ++ring) {
        int next = 256;
        for (int p = 0; p < points; ++p) {
            const int distance = h->distance[p];
            next = distance > last && distance < next ? distance : next;
        }
        for (int p = 0; p < points; ++p) {
            if (h->distance[p] == next) found[n++] = (uint16_t)p;
        }
        last = next;
    }
    return n;
}

static void build(const agk_iq_book *book, int rings, int32_t *where, uint16_t *near)
{
    halves h;
    split(&h, book);
    const int shift = book->bits * book->width / 2;
    for (int high = 0; high < h.n; ++high) {
        for (int low = 0; low < h.n; ++low) where[h.code[high] << shift | h.code[low]] = -1;
    }
    for (int p = 0; p < book->points; ++p) {
        where[h.code[h.point[1][p]] << shift | h.code[h.point[0][p]]] = p;
    }
    int32_t end = 0;
    for (int high = 0; high < h.n; ++high) {
        for (int low = 0; low < h.n; ++low) {
            int32_t *at = &where[h.code[high] << shift | h.code[low]];
            if (*at >= 0) continue;
            *at = -1 - end;
            near[end] = (uint16_t)list(&h, book->points, rings, low, high, near + end + 1);
            end += 1 + near[end];
        }
    }
}

/* The values of elements as levels again. */
static uint8_t level_iq2(int worth)
{
    return (uint8_t)(worth >> 4);
}

static uint8_t level_iq1(int worth)
{
    return (uint8_t)(worth + 1);
}

static uint8_t level_iq3_xxs(int worth)
{
    return (uint8_t)(worth >> 3);
}

static uint8_t level_iq3_s(int worth)
{
    return (uint8_t)(worth >> 1);
}

/* `listed` is the length of all lists: the points that the search finds, and a count for each code that is not a
 * point. In the child of a fork, pthread_once starts anew if it was under way in the parent. */
#define BOOK(name, n, w, b, t, rings, listed, level_of) \
    static uint8_t name##_levels[(n) * (w)]; \
    static int32_t name##_where[1 << (b) * (w)]; \
    static uint16_t name##_near[listed]; \
    static const agk_iq_book name##_book = {n, w, b, t, name##_levels, name##_where, name##_near}; \
    static pthread_once_t name##_once = PTHREAD_ONCE_INIT; \
    static void build_##name(void) \
    { \
        for (int p = 0; p < (n); ++p) { \
            for (int i = 0; i < (w); ++i) name##_levels[p * (w) + i] = level_of(agk_##name##_grid[p][i]); \
        } \
        build(&name##_book, rings, name##_where, name##_near); \
    } \
    const agk_iq_book *agk_##name##_book(void) \
    { \
        pthread_once(&name##_once, build_##name); \
        return &name##_book; \
    }

BOOK(iq2_xxs, 256, 8, 2, 2, 2, 113157 + 6561 - 256, level_iq2)
BOOK(iq2_xs, 512, 8, 2, 2, 2, 181721 + 6561 - 512, level_iq2)
BOOK(iq2_s, 1024, 8, 2, 2, 1, 44716 + 6561 - 1024, level_iq2)
BOOK(iq1, 2048, 8, 2, 2, 3, 327721 + 6561 - 2048, level_iq1)
BOOK(iq3_xxs, 256, 4, 3, 7, 2, 18985 + 4096 - 256, level_iq3_xxs)
BOOK(iq3_s, 512, 4, 3, 7, 3, 24733 + 4096 - 512, level_iq3_s)
