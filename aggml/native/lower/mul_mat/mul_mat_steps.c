/* The steps of mul_mat: convert or pack columns of b, multiply tiles or dots.
 *
 * Not here: which steps a node gets and how they are cut (mul_mat.c), the kernels (mul_mat_blocks.c, avx2/,
 * avx512/). */
#include "lower/chain.h"
#include "mul_mat_plan.h"
#include "formats/quant.h"

static inline char *batch_of(const agk_task *task, const agk_view *view, int64_t i2, int64_t i3)
{
    return (char *)agk_data(task, view) + i2 * view->nb[2] + i3 * view->nb[3];
}

/* The matrices of one batch: b and dst have the same outer extents, those of a repeat. */
typedef struct matrices {
    const char *a, *b;
    char *c;
} matrices;

static matrices matrices_of(const agk_task *task, const agk_node *node, int64_t batch)
{
    const agk_view *a = &node->src[0], *b = &node->src[1];
    const int64_t i2 = batch % b->ne[2], i3 = batch / b->ne[2];
    return (matrices){
        .a = batch_of(task, a, i2 / (b->ne[2] / a->ne[2]), i3 / (b->ne[3] / a->ne[3])),
        .b = batch_of(task, b, i2, i3),
        .c = batch_of(task, &node->dst, i2, i3),
    };
}

/* -- columns of b --------------------------------------------------------------------------------------------- */

void agk_mm_col_from_q8_0(const void *src, void *dst, int64_t n)
{
    const agk_block_q8_0 *x = src;
    agk_mm_col_q8 *y = dst;
    for (int64_t i = 0; i < n; i += 2 * AGK_MM_BLOCK, ++y) {
        memset(y, 0, sizeof *y);
        for (int half = 0; half < 2 && i + half * AGK_MM_BLOCK < n; ++half, ++x) {
            y->d[half] = agk_f16_to_float(x->d);
            memcpy(y->q + half * AGK_MM_BLOCK, x->qs, sizeof x->qs);
            for (int e = 0; e < AGK_MM_BLOCK; ++e) y->start[half * 8 + e / 4] -= 128 * x->qs[e];
        }
    }
}

static inline void convert(agk_mm_form f, const agk_mm_plan *p, const void *src, void *dst, int64_t k)
{
    if (f == AGK_MM_Q8)
        p->col.block(src, dst, k);
    else if (f == AGK_MM_BF16)
        p->col.bf16(src, dst, k);
    else
        p->col.floats(src, dst, k);
}

/* Columns 16 unit .. 16 unit + 15 of one matrix, elements k0 .. k0 + k - 1. */
static void pack_unit(const agk_task *task, const agk_node *node, const agk_mm_plan *p, const char *b, int64_t unit,
                      int64_t k0, int64_t k, void *out)
{
    const agk_view *view = &node->src[1];
    const int64_t cols = agk_mm_least(AGK_MM_UNIT, view->ne[1] - unit * AGK_MM_UNIT);
    const size_t stride = (size_t)view->nb[1];
    b += (size_t)(unit * AGK_MM_UNIT) * stride + agk_row_size(view->type, k0);
    if (p->col_form == AGK_MM_NATURAL) {
        p->pack(k, cols, b, stride, out);
        return;
    }
    const size_t bytes = agk_mm_col_bytes(p->col_form, k);
    for (int64_t j = 0; j < cols; ++j) {
        convert(p->col_form, p, b + (size_t)j * stride, (char *)task->scratch + (size_t)j * bytes, k);
    }
    p->pack(k, cols, task->scratch, bytes, out);
}

agk_status agk_mm_pack_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_mm_plan p = agk_mm_plan_of(node);
    const agk_view *b = &node->src[1];
    const int64_t units = agk_mm_ceil_div(b->ne[1], AGK_MM_UNIT), all = units * b->ne[2] * b->ne[3], k = b->ne[0];
    const size_t bytes = agk_mm_unit_bytes(p.unit_form, k);
    for (int64_t i = chunk * p.col_chunk; i < agk_mm_least(all, (chunk + 1) * p.col_chunk); ++i) {
        const matrices m = matrices_of(task, node, i / units);
        char *out = (char *)agk_work(task, node) + (size_t)i * bytes;
        for (int64_t k0 = 0; k0 < k; k0 += p.k_block) {
            pack_unit(task, node, &p, m.b, i % units, k0, agk_mm_least(p.k_block, k - k0),
                      out + agk_mm_unit_bytes(p.unit_form, k0));
        }
    }
    return AGK_OK;
}

agk_status agk_mm_convert_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_mm_plan p = agk_mm_plan_of(node);
    const agk_view *b = &node->src[1];
    const int64_t n = b->ne[1], all = agk_nrows(b);
    const size_t bytes = agk_mm_col_bytes(p.col_form, b->ne[0]);
    for (int64_t i = chunk * p.col_chunk; i < agk_mm_least(all, (chunk + 1) * p.col_chunk); ++i) {
        const matrices m = matrices_of(task, node, i / n);
        char *out = (char *)agk_work(task, node) + (size_t)i * bytes;
        convert(p.col_form, &p, m.b + i % n * b->nb[1], out, b->ne[0]);
    }
    return AGK_OK;
}

/* -- products ------------------------------------------------------------------------------------------------- */

/* Widen rows of a, k elements each, into `out`. */
static void widen_rows(const agk_node *node, const agk_mm_plan *p, const char *a, int64_t rows, int64_t k, char *out)
{
    const size_t bytes = agk_mm_row_bytes(p->row_form, k);
    for (int64_t i = 0; i < rows; ++i, a += node->src[0].nb[1], out += bytes) {
        if (p->row_form != AGK_MM_FLOATS)
            p->row.block(a, out, k);
        else
            p->row.floats(a, (float *)(void *)out, k);
    }
}

/* What is fused with the product, on rows of a x columns of b that are finished and still in the cache. */
static void stages(const agk_task *task, const agk_node *node, int64_t batch, int64_t row, int64_t rows, int64_t column,
                   int64_t columns)
{
    if (node->n_stages == 0) return;
    const agk_chain_block block = {.i0 = row,
                                   .n = rows,
                                   .i1 = column,
                                   .rows = columns,
                                   .i2 = batch % node->dst.ne[2],
                                   .i3 = batch / node->dst.ne[2]};
    agk_chain_run(task, node, &block, false);
}

/* Rows first .. last - 1 of c for the tiles first_tile .. last_tile - 1: k block by k block, so that what is packed
 * stays in L2 and what is widened in L1. */
static void tiles_item(const agk_task *task, const agk_node *node, const agk_mm_plan *p, int64_t batch, int64_t first,
                       int64_t last, int64_t first_tile, int64_t last_tile)
{
    const agk_view *a = &node->src[0], *b = &node->src[1], *c = &node->dst;
    const matrices m = matrices_of(task, node, batch);
    const int64_t k = a->ne[0], units = agk_mm_ceil_div(b->ne[1], AGK_MM_UNIT);
    char *widened = task->scratch, *packed = task->scratch;
    if (p->col_form != AGK_MM_NATURAL) {
        packed += AGK_MM_UNIT * agk_mm_col_bytes(p->col_form, agk_mm_least(k, p->k_block));
    }
    int64_t k0 = 0;
    do { /* once even if k is 0: the result is zeros */
        const int64_t kn = agk_mm_least(p->k_block, k - k0);
        const bool last_block = k0 + kn >= k;
        size_t unit_stride = agk_mm_unit_bytes(p->unit_form, kn);
        if (!p->shared) {
            const int64_t from = units * first_tile / p->tiles, to = units * last_tile / p->tiles;
            for (int64_t u = from; u < to; ++u) {
                pack_unit(task, node, p, m.b, u, k0, kn, packed + (size_t)(u - from) * unit_stride);
            }
        } else {
            unit_stride = agk_mm_unit_bytes(p->unit_form, k);
            packed = (char *)agk_work(task, node) + (size_t)(batch * units) * unit_stride +
                     agk_mm_unit_bytes(p->unit_form, k0);
        }
        const int64_t step = p->row_form == AGK_MM_NATURAL ? last - first : AGK_MM_WIDENED_ROWS;
        for (int64_t row = first; row < last; row += step) {
            agk_breathe(task);
            const char *rows = m.a + row * a->nb[1] + (int64_t)agk_row_size(a->type, k0);
            agk_mm_block block = {.k = kn,
                                  .rows = agk_mm_least(step, last - row),
                                  .a = rows,
                                  .lda = (size_t)a->nb[1],
                                  .ldb = unit_stride,
                                  .ldc = (size_t)c->nb[1],
                                  .add = k0 > 0,
                                  .a_far = p->a_far,
                                  .c_far = p->c_far};
            if (p->row_form != AGK_MM_NATURAL) {
                widen_rows(node, p, rows, block.rows, kn, widened);
                block.a = widened;
                block.lda = agk_mm_row_bytes(p->row_form, kn);
            }
            for (int64_t tile = first_tile; tile < last_tile; ++tile) {
                const int64_t from = units * tile / p->tiles, to = units * (tile + 1) / p->tiles;
                block.b = packed + (p->shared ? (size_t)from * unit_stride : 0);
                block.cols = agk_mm_least(to * AGK_MM_UNIT, b->ne[1]) - from * AGK_MM_UNIT;
                block.c = (float *)(void *)(m.c + from * AGK_MM_UNIT * c->nb[1]) + row;
                p->product(&block);
                if (last_block) stages(task, node, batch, row, block.rows, from * AGK_MM_UNIT, block.cols);
            }
        }
        k0 += kn;
    } while (k0 < k);
}

agk_status agk_mm_tiles_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_mm_plan p = agk_mm_plan_of(node);
    const agk_view *dst = &node->dst;
    const int64_t groups = agk_mm_ceil_div(p.tiles, p.tiles_per_item), per_batch = groups * p.row_blocks;
    const int64_t all = per_batch * dst->ne[2] * dst->ne[3];
    for (int64_t i = chunk * p.per_chunk; i < agk_mm_least(all, (chunk + 1) * p.per_chunk); ++i) {
        const int64_t group = i % groups, block = i / groups % p.row_blocks; /* groups first: a stays in L2 */
        const int64_t eights = agk_mm_ceil_div(dst->ne[0], 8);
        const int64_t first = eights * block / p.row_blocks * 8, last = eights * (block + 1) / p.row_blocks * 8;
        tiles_item(task, node, &p, i / per_batch, first, agk_mm_least(last, dst->ne[0]), group * p.tiles_per_item,
                   agk_mm_least((group + 1) * p.tiles_per_item, p.tiles));
    }
    return AGK_OK;
}

/* k block by k block, so that the columns stay in L1; k_block is all of k where quantized a is read as it lies. */
static void dots_item(const agk_task *task, const agk_node *node, const agk_mm_plan *p, int64_t batch, int64_t first,
                      int64_t last)
{
    const agk_view *a = &node->src[0], *b = &node->src[1], *c = &node->dst;
    const matrices m = matrices_of(task, node, batch);
    const int64_t k = a->ne[0], step = p->row_form == AGK_MM_NATURAL ? last - first : AGK_MM_WIDENED_ROWS;
    agk_mm_block block = {.cols = b->ne[1], .lda = (size_t)a->nb[1], .ldb = (size_t)b->nb[1], .ldc = (size_t)c->nb[1]};
    const char *columns = m.b;
    const size_t item = p->col_form == AGK_MM_BF16     ? 2
                        : p->col_form == AGK_MM_FLOATS ? 4
                                                       : agk_traits(b->type)->type_size;
    if (p->col_form != AGK_MM_NATURAL) {
        block.ldb = agk_mm_col_bytes(p->col_form, k);
        columns = (char *)agk_work(task, node) + (size_t)(batch * b->ne[1]) * block.ldb;
    }
    int64_t k0 = 0;
    do {
        block.k = agk_mm_least(p->k_block, k - k0);
        block.b = columns + (size_t)k0 * item;
        block.add = k0 > 0;
        for (int64_t row = first; row < last; row += step) {
            agk_breathe(task);
            block.rows = agk_mm_least(step, last - row);
            block.a = m.a + row * a->nb[1] + (int64_t)agk_row_size(a->type, k0);
            block.c = (float *)(void *)m.c + row;
            if (p->row_form != AGK_MM_NATURAL) {
                widen_rows(node, p, block.a, block.rows, block.k, task->scratch);
                block.a = task->scratch;
                block.lda = agk_mm_row_bytes(p->row_form, block.k);
            }
            p->product(&block);
            if (k0 + block.k >= k) stages(task, node, batch, row, block.rows, 0, block.cols);
        }
        k0 += block.k;
    } while (k0 < k);
}

agk_status agk_mm_dots_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_mm_plan p = agk_mm_plan_of(node);
    const int64_t m = node->dst.ne[0], all = p.row_blocks * node->dst.ne[2] * node->dst.ne[3];
    chunk = agk_in_streams(task, chunk, agk_mm_ceil_div(all, p.per_chunk));
    for (int64_t i = chunk * p.per_chunk; i < agk_mm_least(all, (chunk + 1) * p.per_chunk); ++i) {
        const int64_t block = i % p.row_blocks, fours = agk_mm_ceil_div(m, 4);
        const int64_t first = fours * block / p.row_blocks * 4, last = fours * (block + 1) / p.row_blocks * 4;
        dots_item(task, node, &p, i / p.row_blocks, first, agk_mm_least(last, m));
    }
    return AGK_OK;
}
