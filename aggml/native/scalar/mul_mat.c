/* mul_mat: how a node is checked, which kernels it gets, how it is cut; and the steps.
 *
 * Few columns: one step of dots over rows of a, after one that converts columns where b is not what the dot reads.
 * Many columns: tiles. Where a is multiplied as it lies (f32, bf16), each item packs its 48 columns of b for
 * itself: packing costs 6 / rows of the product, and nothing crosses between threads. Where rows of a must be widened
 * first (f16, quantized), b is packed by a step of its own and each item widens 32 rows for some 100 columns.
 *
 * Not here: the kernels (mul_mat_kernels.c, avx2/, avx512/). Source of the rules: ggml_mul_mat. */
#include "../kernel_types.h"
#include "../mul_mat.h"
#include "../refuse.h"
#include "quant.h"

enum {
    UNIT = AGK_MM_UNIT,
    K_BLOCK = 512,     /* a tile of b is then 96 KB, a tenth of L2; a multiple of 64 */
    WIDENED_ROWS = 32, /* rows of a in scratch at a time: 64 KB */
    MIN_ROWS = 96,     /* fewer rows per item would make packing b cost more than 7 % */
    MAX_ROWS = 768,
    DOT_COLUMNS = 16,  /* up to here dots, unless rows are shorter than DOT_K: then adding up the lanes costs more */
    DOT_COLUMNS_Q = 8,
    DOT_K = 64,
    L1_ELEMENTS = 7168, /* f32 of columns: 28 of 48 KB */
    FAR_A = 1 << 20, /* bytes: one matrix against L2, the whole result against L3 */
    FAR_C = 8 << 20,
    SLICE_BYTES = 1 << 17, /* of a source, in one chunk of packing or converting */
};
/* What one thread does in some 10 us, of AVX-512; chunks follow from the shape alone. */
static const double slice_flops = 2.5e6, slice_read = 250e3;

/* What is made of elements before a kernel reads them. */
typedef enum form { NATURAL, FLOATS, BF16, BF16_PAIRS, Q8 } form;

/* What the lowering decided; kept in node->aux. Items of a product: (batch, row block, group of tiles). */
typedef struct plan {
    agk_mm_block_fn *product;
    agk_mm_pack_fn *pack; /* NULL: dots */
    union {
        agk_to_float_fn *floats;
        agk_from_float_fn *bf16;
        agk_mm_convert_fn *q8;
    } row, col; /* what widens rows of a, what converts columns of b before they are packed or multiplied */
    int64_t per_chunk;  /* items */
    int64_t col_chunk;  /* units or columns of the first step, per chunk */
    int32_t row_blocks; /* per batch */
    int32_t tiles, tiles_per_item, k_block;
    uint8_t row_form, col_form, unit_form; /* form */
    bool shared; /* b is packed by a step of its own */
    bool a_far, c_far;
} plan;

_Static_assert(sizeof(plan) <= sizeof(((agk_node *)0)->aux), "the plan lies in aux");

static inline plan plan_of(const agk_node *node)
{
    plan p;
    memcpy(&p, &node->aux, sizeof p);
    return p;
}

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static size_t row_bytes(form f, int64_t k)
{
    return f == Q8 ? agk_mm_blocks(k, AGK_MM_BLOCK) * sizeof(agk_mm_row_q8) : (size_t)k * sizeof(float);
}

static size_t col_bytes(form f, int64_t k)
{
    if (f == Q8) return agk_mm_blocks(k, 2 * AGK_MM_BLOCK) * sizeof(agk_mm_col_q8);
    if (f == BF16) return (agk_mm_blocks(k, 2 * UNIT) + 1) * 2 * UNIT * sizeof(uint16_t);
    return (agk_mm_blocks(k, UNIT) + 1) * UNIT * sizeof(float); /* a line more: powers of 2 would share one L1 set */
}

static size_t unit_bytes(form f, int64_t k)
{
    if (f == Q8) return agk_mm_blocks(k, AGK_MM_BLOCK) * sizeof(agk_mm_unit_q8);
    return (f == BF16_PAIRS ? agk_mm_blocks(k, 2) : (size_t)k) * UNIT * 4;
}

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

/* q8_0 columns are quantized already: exact. */
static void col_from_q8_0(const void *src, void *dst, int64_t n)
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

static inline void convert(form f, const plan *p, const void *src, void *dst, int64_t k)
{
    if (f == Q8) p->col.q8(src, dst, k);
    else if (f == BF16) p->col.bf16(src, dst, k);
    else p->col.floats(src, dst, k);
}

/* Columns 16 unit .. 16 unit + 15 of one matrix, elements k0 .. k0 + k - 1. */
static void pack_unit(const agk_task *task, const agk_node *node, const plan *p, const char *b, int64_t unit,
                      int64_t k0, int64_t k, void *out)
{
    const agk_view *view = &node->src[1];
    const int64_t cols = least(UNIT, view->ne[1] - unit * UNIT);
    const size_t stride = (size_t)view->nb[1];
    b += (size_t)(unit * UNIT) * stride + agk_row_size(view->type, k0);
    if (p->col_form == NATURAL) {
        p->pack(k, cols, b, stride, out);
        return;
    }
    const size_t bytes = col_bytes((form)p->col_form, k);
    for (int64_t j = 0; j < cols; ++j) {
        convert((form)p->col_form, p, b + (size_t)j * stride, (char *)task->scratch + (size_t)j * bytes, k);
    }
    p->pack(k, cols, task->scratch, bytes, out);
}

static agk_status pack_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const plan p = plan_of(node);
    const agk_view *b = &node->src[1];
    const int64_t units = ceil_div(b->ne[1], UNIT), all = units * b->ne[2] * b->ne[3], k = b->ne[0];
    const size_t bytes = unit_bytes((form)p.unit_form, k);
    for (int64_t i = chunk * p.col_chunk; i < least(all, (chunk + 1) * p.col_chunk); ++i) {
        const matrices m = matrices_of(task, node, i / units);
        char *out = (char *)agk_work(task, node) + (size_t)i * bytes;
        for (int64_t k0 = 0; k0 < k; k0 += p.k_block) {
            pack_unit(task, node, &p, m.b, i % units, k0, least(p.k_block, k - k0),
                      out + unit_bytes((form)p.unit_form, k0));
        }
    }
    return AGK_OK;
}

static agk_status convert_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const plan p = plan_of(node);
    const agk_view *b = &node->src[1];
    const int64_t n = b->ne[1], all = agk_nrows(b);
    const size_t bytes = col_bytes((form)p.col_form, b->ne[0]);
    for (int64_t i = chunk * p.col_chunk; i < least(all, (chunk + 1) * p.col_chunk); ++i) {
        const matrices m = matrices_of(task, node, i / n);
        convert((form)p.col_form, &p, m.b + i % n * b->nb[1], (char *)agk_work(task, node) + (size_t)i * bytes, b->ne[0]);
    }
    return AGK_OK;
}

/* -- products ------------------------------------------------------------------------------------------------- */

/* Widen rows of a, k elements each, into `out`. */
static void widen_rows(const agk_node *node, const plan *p, const char *a, int64_t rows, int64_t k, char *out)
{
    const size_t bytes = row_bytes((form)p->row_form, k);
    for (int64_t i = 0; i < rows; ++i, a += node->src[0].nb[1], out += bytes) {
        if (p->row_form == Q8) p->row.q8(a, out, k);
        else p->row.floats(a, (float *)(void *)out, k);
    }
}

/* Rows first .. last - 1 of c for the tiles first_tile .. last_tile - 1: k block by k block, so that what is packed
 * stays in L2 and what is widened in L1. */
static void tiles_item(const agk_task *task, const agk_node *node, const plan *p, int64_t batch, int64_t first,
                       int64_t last, int64_t first_tile, int64_t last_tile)
{
    const agk_view *a = &node->src[0], *b = &node->src[1], *c = &node->dst;
    const matrices m = matrices_of(task, node, batch);
    const int64_t k = a->ne[0], units = ceil_div(b->ne[1], UNIT);
    char *widened = task->scratch, *packed = task->scratch;
    if (p->col_form != NATURAL) packed += UNIT * col_bytes((form)p->col_form, least(k, p->k_block));
    int64_t k0 = 0;
    do { /* once even if k is 0: the result is zeros */
        const int64_t kn = least(p->k_block, k - k0);
        size_t unit_stride = unit_bytes((form)p->unit_form, kn);
        if (!p->shared) {
            const int64_t from = units * first_tile / p->tiles, to = units * last_tile / p->tiles;
            for (int64_t u = from; u < to; ++u) {
                pack_unit(task, node, p, m.b, u, k0, kn, packed + (size_t)(u - from) * unit_stride);
            }
        } else {
            unit_stride = unit_bytes((form)p->unit_form, k);
            packed = (char *)agk_work(task, node) + (size_t)(batch * units) * unit_stride +
                     unit_bytes((form)p->unit_form, k0);
        }
        const int64_t step = p->row_form == NATURAL ? last - first : WIDENED_ROWS;
        for (int64_t row = first; row < last; row += step) {
            const char *rows = m.a + row * a->nb[1] + (int64_t)agk_row_size(a->type, k0);
            agk_mm_block block = {.k = kn, .rows = least(step, last - row), .a = rows, .lda = (size_t)a->nb[1],
                                  .ldb = unit_stride, .ldc = (size_t)c->nb[1], .add = k0 > 0,
                                  .a_far = p->a_far, .c_far = p->c_far};
            if (p->row_form != NATURAL) {
                widen_rows(node, p, rows, block.rows, kn, widened);
                block.a = widened;
                block.lda = row_bytes((form)p->row_form, kn);
            }
            for (int64_t tile = first_tile; tile < last_tile; ++tile) {
                const int64_t from = units * tile / p->tiles, to = units * (tile + 1) / p->tiles;
                block.b = packed + (p->shared ? (size_t)from * unit_stride : 0);
                block.cols = least(to * UNIT, b->ne[1]) - from * UNIT;
                block.c = (float *)(void *)(m.c + from * UNIT * c->nb[1]) + row;
                p->product(&block);
            }
        }
        k0 += kn;
    } while (k0 < k);
}

static agk_status tiles_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const plan p = plan_of(node);
    const agk_view *dst = &node->dst;
    const int64_t groups = ceil_div(p.tiles, p.tiles_per_item), per_batch = groups * p.row_blocks;
    const int64_t all = per_batch * dst->ne[2] * dst->ne[3];
    for (int64_t i = chunk * p.per_chunk; i < least(all, (chunk + 1) * p.per_chunk); ++i) {
        const int64_t group = i % groups, block = i / groups % p.row_blocks; /* groups first: a stays in L2 */
        const int64_t eights = ceil_div(dst->ne[0], 8);
        const int64_t first = eights * block / p.row_blocks * 8, last = eights * (block + 1) / p.row_blocks * 8;
        tiles_item(task, node, &p, i / per_batch, first, least(last, dst->ne[0]), group * p.tiles_per_item,
                   least((group + 1) * p.tiles_per_item, p.tiles));
    }
    return AGK_OK;
}

/* k block by k block, so that the columns stay in L1; k_block is all of k for quantized a. */
static void dots_item(const agk_task *task, const agk_node *node, const plan *p, int64_t batch, int64_t first,
                      int64_t last)
{
    const agk_view *a = &node->src[0], *b = &node->src[1], *c = &node->dst;
    const matrices m = matrices_of(task, node, batch);
    const int64_t k = a->ne[0], step = p->row_form == NATURAL ? last - first : WIDENED_ROWS;
    agk_mm_block block = {.cols = b->ne[1], .lda = (size_t)a->nb[1], .ldb = (size_t)b->nb[1], .ldc = (size_t)c->nb[1]};
    const char *columns = m.b;
    const size_t item = p->col_form == BF16 ? 2 : p->col_form == FLOATS ? 4 : agk_traits(b->type)->type_size;
    if (p->col_form != NATURAL) {
        block.ldb = col_bytes((form)p->col_form, k);
        columns = (char *)agk_work(task, node) + (size_t)(batch * b->ne[1]) * block.ldb;
    }
    int64_t k0 = 0;
    do {
        block.k = least(p->k_block, k - k0);
        block.b = columns + (size_t)k0 * item;
        block.add = k0 > 0;
        for (int64_t row = first; row < last; row += step) {
            block.rows = least(step, last - row);
            block.a = m.a + row * a->nb[1] + (int64_t)agk_row_size(a->type, k0);
            block.c = (float *)(void *)m.c + row;
            if (p->row_form != NATURAL) {
                widen_rows(node, p, block.a, block.rows, k, task->scratch);
                block.a = task->scratch;
                block.lda = row_bytes((form)p->row_form, k);
            }
            p->product(&block);
        }
        k0 += block.k;
    } while (k0 < k);
}

static agk_status dots_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const plan p = plan_of(node);
    const int64_t m = node->dst.ne[0], all = p.row_blocks * node->dst.ne[2] * node->dst.ne[3];
    for (int64_t i = chunk * p.per_chunk; i < least(all, (chunk + 1) * p.per_chunk); ++i) {
        const int64_t block = i % p.row_blocks, fours = ceil_div(m, 4);
        const int64_t first = fours * block / p.row_blocks * 4, last = fours * (block + 1) / p.row_blocks * 4;
        dots_item(task, node, &p, i / p.row_blocks, first, least(last, m));
    }
    return AGK_OK;
}

/* -- lowering ------------------------------------------------------------------------------------------------- */

static agk_status check(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *b = &node->src[1], *dst = &node->dst;
    if (node->n_src < 2) return agk_refuse(lowering, AGK_INVALID, "needs two operands, not %d", node->n_src);
    const agk_type_traits *ta = agk_traits(a->type), *tb = agk_traits(b->type);
    if (ta->name == NULL || ta->vec_dot_type == AGK_NONE) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s", agk_type_name(a->type));
    }
    if (b->type != AGK_F32 && b->type != (int32_t)ta->vec_dot_type) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s, so b must be f32 or %s, not %s", ta->name,
                          agk_type_name((int)ta->vec_dot_type), agk_type_name(b->type));
    }
    if (dst->type != AGK_F32) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "the result must be f32, not %s", agk_type_name(dst->type));
    }
    if (a->ne[0] != b->ne[0] || a->ne[0] % ta->blck_size != 0) {
        return agk_refuse(lowering, AGK_INVALID, "rows of a (%s) have %lld elements, those of b %lld", ta->name,
                          (long long)a->ne[0], (long long)b->ne[0]);
    }
    for (int i = 2; i < 4; ++i) {
        if (a->ne[i] == 0 ? b->ne[i] != 0 : b->ne[i] % a->ne[i] != 0) {
            return agk_refuse(lowering, AGK_INVALID, "a has %lld matrices in dimension %d, b %lld, no multiple of it",
                              (long long)a->ne[i], i, (long long)b->ne[i]);
        }
    }
    if (dst->ne[0] != a->ne[1] || dst->ne[1] != b->ne[1] || dst->ne[2] != b->ne[2] || dst->ne[3] != b->ne[3]) {
        return agk_refuse(lowering, AGK_INVALID, "the result is [%lld, %lld, %lld, %lld], not [%lld, %lld, %lld, %lld]",
                          (long long)dst->ne[0], (long long)dst->ne[1], (long long)dst->ne[2], (long long)dst->ne[3],
                          (long long)a->ne[1], (long long)b->ne[1], (long long)b->ne[2], (long long)b->ne[3]);
    }
    if (a->nb[0] != (int64_t)ta->type_size || b->nb[0] != (int64_t)tb->type_size || dst->nb[0] != 4) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "rows must be contiguous, elements are %lld, %lld and %lld bytes apart",
                          (long long)a->nb[0], (long long)b->nb[0], (long long)dst->nb[0]);
    }
    return AGK_OK;
}

static agk_to_float_fn *to_float(int type, uint32_t cpu)
{
    switch (type) {
    case AGK_F16: return AGK_PICK(f16_to_f32, cpu);
    case AGK_BF16: return AGK_PICK(bf16_to_f32, cpu);
    case AGK_Q8_0: return AGK_PICK(q8_0_to_f32, cpu);
    default: return AGK_PICK(q4_0_to_f32, cpu);
    }
}

static void columns_q8(plan *p, int type, uint32_t cpu)
{
    p->col_form = Q8;
    p->col.q8 = type == AGK_Q8_0 ? col_from_q8_0 : AGK_PICK(mm_col_q8, cpu);
}

static void columns_f32(plan *p, int type, uint32_t cpu)
{
    if (type == AGK_F32) return;
    p->col_form = FLOATS;
    p->col.floats = to_float(type, cpu);
}

static void rows_f32(plan *p, int type, uint32_t cpu)
{
    p->row_form = FLOATS;
    p->row.floats = to_float(type, cpu);
}

static void lower_dots(agk_lowering *lowering, plan *p)
{
    const uint32_t cpu = lowering->cpu;
    const agk_view *a = &lowering->node->src[0], *b = &lowering->node->src[1];
    const bool quantized = a->type == AGK_Q8_0 || a->type == AGK_Q4_0;
    const uint32_t bf16 = AGK_AVX512 | AGK_AVX512_BF16;
    if (quantized && (cpu & AGK_AVX2)) {
        p->product = a->type == AGK_Q8_0 ? AGK_PICK(mm_dot_q8_0, cpu) : AGK_PICK(mm_dot_q4_0, cpu);
        columns_q8(p, b->type, cpu);
    } else if (a->type == AGK_BF16 && (cpu & bf16) == bf16) {
        p->product = AGK_PICK(mm_dot_bf16_bf16, cpu);
        if (b->type == AGK_F32) {
            p->col_form = BF16;
            p->col.bf16 = AGK_PICK(f32_to_bf16, cpu);
        }
    } else {
        columns_f32(p, b->type, cpu);
        p->product = a->type == AGK_F16    ? AGK_PICK(mm_dot_f16, cpu)
                     : a->type == AGK_BF16 ? AGK_PICK(mm_dot_bf16, cpu)
                                           : AGK_PICK(mm_dot_f32, cpu);
        if (quantized) rows_f32(p, a->type, cpu);
        if (p->col_form == NATURAL && b->ne[1] > 4 && b->nb[1] % 4096 == 0) { /* all columns in one set of L1 */
            p->col_form = FLOATS;
            p->col.floats = agk_traits(AGK_F32)->to_float;
        }
    }
    const int64_t k = a->ne[0] > 0 ? a->ne[0] : 1, in_l1 = L1_ELEMENTS / b->ne[1] / 64 * 64;
    p->k_block = (int32_t)(quantized ? k : least(k, in_l1));
    const double row_flops = 2.0 * (double)a->ne[0] * (double)b->ne[1];
    const double row_slices = row_flops / slice_flops + (double)agk_row_size(a->type, a->ne[0]) / slice_read;
    const double batch_slices = row_slices * (double)a->ne[1];
    const int64_t batches = b->ne[2] * b->ne[3], most = ceil_div(a->ne[1], 4);
    const double blocks = batch_slices * (double)batches <= 1.5 ? 1.0 : batch_slices + 0.5;
    p->row_blocks = (int32_t)(blocks < 1.0 ? 1 : blocks < (double)most ? (int64_t)blocks : most);
    const double per_chunk = (double)p->row_blocks / batch_slices; /* items of 10 us */
    p->per_chunk = per_chunk < 1.0 ? 1 : (int64_t)(per_chunk < 1e6 ? per_chunk : 1e6);
    const int64_t items = p->row_blocks * batches;
    if (batch_slices * (double)batches <= 1.5) p->per_chunk = items;
    if (p->row_form != NATURAL) lowering->scratch_size = WIDENED_ROWS * row_bytes((form)p->row_form, a->ne[0]);
    if (p->col_form != NATURAL) {
        const int64_t columns = agk_nrows(b);
        lowering->work_size = (size_t)columns * col_bytes((form)p->col_form, b->ne[0]);
        p->col_chunk = least(columns, 1 + SLICE_BYTES / (int64_t)(agk_row_size(b->type, b->ne[0]) + 1));
        agk_add_step(lowering, convert_step, ceil_div(columns, p->col_chunk));
    }
    agk_add_step(lowering, dots_step, ceil_div(items, p->per_chunk));
}

static void tile_kernels(agk_lowering *lowering, plan *p)
{
    const uint32_t cpu = lowering->cpu;
    const agk_view *a = &lowering->node->src[0], *b = &lowering->node->src[1];
    const uint32_t bf16 = AGK_AVX512 | AGK_AVX512_BF16, vnni = AGK_AVX512 | AGK_AVX512_VNNI;
    if (a->type == AGK_BF16 && (cpu & bf16) == bf16) {
        p->unit_form = BF16_PAIRS;
        p->pack = AGK_PICK(mm_pack_bf16, cpu);
        p->product = AGK_PICK(mm_tile_bf16, cpu);
        columns_f32(p, b->type, cpu);
    } else if ((a->type == AGK_Q8_0 || a->type == AGK_Q4_0) && (cpu & vnni) == vnni) {
        p->unit_form = p->row_form = Q8;
        p->pack = AGK_PICK(mm_pack_q8, cpu);
        p->product = AGK_PICK(mm_tile_q8, cpu);
        p->row.q8 = a->type == AGK_Q8_0 ? AGK_PICK(mm_row_q8_0, cpu) : AGK_PICK(mm_row_q4_0, cpu);
        columns_q8(p, b->type, cpu);
    } else {
        p->unit_form = FLOATS;
        p->pack = AGK_PICK(mm_pack_f32, cpu);
        p->product = AGK_PICK(mm_tile_f32, cpu);
        columns_f32(p, b->type, cpu);
        if (a->type != AGK_F32) rows_f32(p, a->type, cpu);
    }
}

static void lower_tiles(agk_lowering *lowering, plan *p)
{
    const agk_view *a = &lowering->node->src[0], *b = &lowering->node->src[1];
    tile_kernels(lowering, p);
    const int64_t k = a->ne[0], m = a->ne[1], units = ceil_div(b->ne[1], UNIT), batches = b->ne[2] * b->ne[3];
    p->k_block = (lowering->cpu & AGK_AVX2) == 0 && k > 0 && k < 1 << 30 ? (int32_t)k : K_BLOCK;
    p->tiles = (int32_t)ceil_div(units, AGK_MM_MAX_UNITS);
    p->tiles_per_item = 1;
    p->shared = p->row_form != NATURAL;
    p->a_far = !p->shared && (int64_t)agk_row_size(a->type, k) * m > FAR_A;
    p->c_far = m * b->ne[1] * batches * 4 > FAR_C;
    const double tile_slices = 2.0 * (double)k * (double)m * AGK_MM_MAX_UNITS * UNIT / slice_flops;
    const double slices = tile_slices * (double)p->tiles * (double)batches;
    int64_t row_blocks;
    if (p->shared) {
        row_blocks = ceil_div(m, WIDENED_ROWS);
        const double tiles = (double)row_blocks / (tile_slices + 1e-9); /* of 10 us each */
        p->tiles_per_item = (int32_t)(tiles < 2.0 ? 2 : tiles < (double)p->tiles ? (int64_t)tiles : p->tiles);
        p->tiles_per_item = (int32_t)least(p->tiles_per_item, p->tiles);
    } else {
        const int64_t items = p->tiles * batches; /* 16 items at least, but no smaller than a slice */
        row_blocks = least(ceil_div(16, items), (int64_t)(slices / (double)items));
        row_blocks = least(row_blocks, m / MIN_ROWS);
        const int64_t fewest = ceil_div(m, MAX_ROWS);
        if (row_blocks < fewest) row_blocks = fewest;
    }
    p->row_blocks = (int32_t)row_blocks;
    const int64_t items = ceil_div(p->tiles, p->tiles_per_item) * row_blocks * batches;
    const double per_chunk = (double)items / (slices + 1e-9);
    p->per_chunk = per_chunk < 1.0 ? 1 : (int64_t)(per_chunk < (double)items ? per_chunk : (double)items);
    if (slices <= 1.5) p->per_chunk = items;

    const int64_t k_most = least(k, p->k_block);
    const size_t scratch_cols = p->col_form == NATURAL ? 0 : UNIT * col_bytes((form)p->col_form, k_most);
    if (p->shared) {
        const size_t rows = WIDENED_ROWS * row_bytes((form)p->row_form, k_most);
        lowering->scratch_size = rows > scratch_cols ? rows : scratch_cols;
        lowering->work_size = (size_t)(units * batches) * unit_bytes((form)p->unit_form, k);
        const int64_t unit_source = 1 + UNIT * (int64_t)agk_row_size(b->type, k);
        p->col_chunk = slices <= 1.5 ? units * batches : 1 + SLICE_BYTES / unit_source;
        agk_add_step(lowering, pack_step, ceil_div(units * batches, p->col_chunk));
    } else {
        lowering->scratch_size = scratch_cols + AGK_MM_MAX_UNITS * unit_bytes((form)p->unit_form, k_most);
    }
    agk_add_step(lowering, tiles_step, ceil_div(items, p->per_chunk));
}

agk_status agk_lower_mul_mat(agk_lowering *lowering)
{
    const agk_status status = check(lowering);
    const agk_view *a = &lowering->node->src[0], *b = &lowering->node->src[1];
    if (status != AGK_OK || agk_nelements(&lowering->node->dst) == 0) return status;
    const bool quantized = a->type == AGK_Q8_0 || a->type == AGK_Q4_0;
    plan p = {0};
    if (b->ne[1] <= 2 || (b->ne[1] <= (quantized ? DOT_COLUMNS_Q : DOT_COLUMNS) && a->ne[0] >= DOT_K)) {
        lower_dots(lowering, &p);
    } else {
        lower_tiles(lowering, &p);
    }
    memcpy(&lowering->node->aux, &p, sizeof p);
    return AGK_OK;
}
