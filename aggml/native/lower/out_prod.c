/* out_prod: dst[i, j] = sum over k of a[i, k] * b[j, k], where k is dimension 1 of both.
 *
 * It uses the blocks of mul_mat, which need k innermost in a and 16 columns of b side by side. So a block of a is
 * widened and transposed in scratch, while b already has almost the layout that is needed. Not here: the kernels
 * (mul_mat_blocks.c of each folder of kernels/). */
#include "refuse.h"
#include "strided.h"
#include "lower/mul_mat/blocks.h"

enum {
    ROWS = 256,  /* rows of the result in one item; a multiple of every block size */
    DEPTH = 128, /* k at a time: 128 KB of a and 24 KB of b, both in L2 */
    COLUMNS = AGK_MM_MAX_UNITS * AGK_MM_UNIT,
};

enum { TILES_PER_ITEM, ITEMS_PER_ROWS, PER_CHUNK, ITEMS, READ, TILE }; /* slots of node->aux */

static size_t turned_floats(void)
{
    return (size_t)ROWS * DEPTH;
}

/* a[row .. row + rows - 1, k0 .. k0 + k - 1] as out[row][DEPTH]. */
static void turn(const agk_node *node, const char *plane, int64_t row, int64_t rows, int64_t k0, int64_t k, float *out)
{
    const agk_view *a = &node->src[0];
    agk_to_float_fn *read = (agk_to_float_fn *)node->aux.fn[READ];
    float line[ROWS];
    for (int64_t i = 0; i < k; ++i) {
        read(plane + (k0 + i) * a->nb[1] + (int64_t)agk_row_size(a->type, row), line, rows);
        for (int64_t j = 0; j < rows; ++j) out[j * DEPTH + i] = line[j];
    }
}

/* b[col .. col + cols - 1, k0 .. k0 + k - 1] in units [k][16]; missing columns are zero. */
static void pack(const agk_view *b, const char *plane, int64_t col, int64_t cols, int64_t k0, int64_t k, float *out)
{
    for (int64_t unit = 0; unit < cols; unit += AGK_MM_UNIT) {
        const int64_t n = agk_mm_least(AGK_MM_UNIT, cols - unit);
        for (int64_t i = 0; i < k; ++i, out += AGK_MM_UNIT) {
            const char *from = plane + (col + unit) * b->nb[0] + (k0 + i) * b->nb[1];
            memset(out, 0, AGK_MM_UNIT * sizeof *out);
            for (int64_t j = 0; j < n; ++j) memcpy(&out[j], from + j * b->nb[0], sizeof *out);
        }
    }
}

static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *a = &node->src[0], *b = &node->src[1], *dst = &node->dst;
    const int64_t *aux = node->aux.i, m = dst->ne[0], n = dst->ne[1], depth = a->ne[1];
    const int64_t row_blocks = agk_mm_ceil_div(m, ROWS);
    float *turned = task->scratch, *packed = turned + turned_floats();
    for (int64_t i = chunk * aux[PER_CHUNK]; i < agk_mm_least(aux[ITEMS], (chunk + 1) * aux[PER_CHUNK]); ++i) {
        const int64_t part = i % aux[ITEMS_PER_ROWS], block = i / aux[ITEMS_PER_ROWS] % row_blocks;
        const int64_t batch = i / aux[ITEMS_PER_ROWS] / row_blocks, i2 = batch % dst->ne[2], i3 = batch / dst->ne[2];
        const char *plane_a = (const char *)agk_data(task, a) + i2 / (dst->ne[2] / a->ne[2]) * a->nb[2] +
                              i3 / (dst->ne[3] / a->ne[3]) * a->nb[3];
        const char *plane_b = (const char *)agk_data(task, b) + i2 * b->nb[2] + i3 * b->nb[3];
        char *plane = (char *)agk_data(task, dst) + i2 * dst->nb[2] + i3 * dst->nb[3];
        const int64_t row = block * ROWS, rows = agk_mm_least(ROWS, m - row), width = aux[TILES_PER_ITEM] * COLUMNS;
        const int64_t last = agk_mm_least(n, (part + 1) * width);
        int64_t k0 = 0;
        do { /* one pass even if k is 0: the result is zeros */
            const int64_t k = agk_mm_least(DEPTH, depth - k0);
            turn(node, plane_a, row, rows, k0, k, turned);
            for (int64_t col = part * width; col < last; col += COLUMNS) {
                agk_mm_block tile = {.k = k,
                                     .rows = rows,
                                     .cols = agk_mm_least(COLUMNS, last - col),
                                     .a = turned,
                                     .lda = DEPTH * sizeof(float),
                                     .b = packed,
                                     .ldb = agk_mm_unit_bytes(AGK_MM_UNIT_FLOATS, k),
                                     .c = (float *)(void *)(plane + col * dst->nb[1]) + row,
                                     .ldc = (size_t)dst->nb[1],
                                     .add = k0 > 0};
                pack(b, plane_b, col, tile.cols, k0, k, packed);
                ((agk_mm_block_fn *)node->aux.fn[TILE])(&tile);
            }
            k0 += k;
        } while (k0 < depth);
    }
    return AGK_OK;
}

static agk_status check(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *b = &node->src[1], *dst = &node->dst;
    const agk_type_traits *ta = agk_traits(a->type);
    const bool repeats = a->ne[2] != b->ne[2] || a->ne[3] != b->ne[3];
    if (ta->to_float == NULL || a->type == AGK_BF16 || b->type != AGK_F32 || dst->type != AGK_F32 ||
        (a->type != AGK_F32 && repeats)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s%s, b is %s", agk_type_name(a->type),
                          repeats ? " and repeats" : "", agk_type_name(b->type));
    }
    bool fits = a->ne[1] == b->ne[1] && a->ne[0] % ta->blck_size == 0 && dst->ne[0] == a->ne[0] &&
                dst->ne[1] == b->ne[0] && dst->ne[2] == b->ne[2] && dst->ne[3] == b->ne[3];
    for (int d = 2; d < 4; ++d) fits = fits && (a->ne[d] == 0 ? b->ne[d] == 0 : b->ne[d] % a->ne[d] == 0);
    if (!fits) {
        return agk_refuse(lowering, AGK_INVALID, "a is %lld x %lld x %lld x %lld, b %lld x %lld x %lld x %lld",
                          (long long)a->ne[0], (long long)a->ne[1], (long long)a->ne[2], (long long)a->ne[3],
                          (long long)b->ne[0], (long long)b->ne[1], (long long)b->ne[2], (long long)b->ne[3]);
    }
    if ((a->nb[0] != (int64_t)ta->type_size && a->ne[0] > ta->blck_size) || dst->nb[0] != 4) {
        return agk_refuse(lowering, AGK_UNSUPPORTED,
                          "rows of a must be contiguous, but their elements are %lld bytes apart", (long long)a->nb[0]);
    }
    return AGK_OK;
}

agk_status agk_lower_out_prod(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const agk_status status = check(lowering);
    if (status != AGK_OK || agk_nelements(dst) == 0) return status;
    const int64_t m = dst->ne[0], tiles = agk_mm_ceil_div(dst->ne[1], COLUMNS);
    /* ns of one thread: 8 for 1000 products, 0.5 for an element that is widened and transposed */
    const double rows = (double)agk_mm_least(ROWS, m), depth = (double)a->ne[1] + 1.0;
    const double tile_ns = rows * depth * COLUMNS * 0.008 + 100.0, turn_ns = rows * depth * 0.5;
    /* so that transposing takes no more than a third of the time */
    const double wanted = (10000.0 + 3.0 * turn_ns) / tile_ns;
    const int64_t per_item = wanted < (double)tiles ? (int64_t)wanted + 1 : tiles;
    const int64_t items_per_rows = agk_mm_ceil_div(tiles, per_item);
    const int64_t items = items_per_rows * agk_mm_ceil_div(m, ROWS) * dst->ne[2] * dst->ne[3];
    node->aux.fn[READ] = (agk_any_fn *)agk_reader(a->type, lowering->cpu);
    node->aux.fn[TILE] = (agk_any_fn *)AGK_PICK(mm_blocks_f32, lowering->cpu);
    node->aux.i[TILES_PER_ITEM] = per_item;
    node->aux.i[ITEMS_PER_ROWS] = items_per_rows;
    node->aux.i[ITEMS] = items;
    node->aux.i[PER_CHUNK] = agk_units_per_chunk(items, tile_ns * (double)per_item + turn_ns);
    lowering->scratch_size = (turned_floats() + (size_t)DEPTH * COLUMNS) * sizeof(float);
    agk_add_step(lowering, run, agk_chunks(items, node->aux.i[PER_CHUNK]));
    return AGK_OK;
}
