/* Dots: products of few columns. Lanes hold consecutive k of both operands; each row and column has one sum.
 *
 * Weights are read once, so memory limits them with 1 to 8 columns. Three schemes differ in the form of the columns:
 * - dots_q8: quantized rows as they lie times columns of bytes (agk_mm_col_q8);
 * - dots_bf16: pairs of bf16, where a kernel multiplies them;
 * - dots_f32: f32, f16 and bf16 rows times floats; other rows are widened to floats, 32 at a time.
 * A first step converts the columns, unless they already have the form that the kernel reads. Not here: the kernels
 * (mul_mat_dots*.c). */
#include "dots.h"

#include "plain.h"

enum {
    DOT_K = 64,         /* the least k of a block */
    L1_ELEMENTS = 7168, /* f32 elements of columns: they take 28 of the 48 KB */
    ONE_COLUMN = 16384, /* elements of a single column, which may lie in L2, so that rows are read from end to end */
};

static const double slice_read = 250e3; /* bytes that one thread reads in some 10 us */
/* The kernels of a Zen 5 read rows as 4 streams. What is prefetched beyond their ends is lost with each block, so the
 * blocks are twice as large: one column of f16 and bf16 has 0.97 instead of 0.95 of a plain read. With less than 8 MB
 * there would be less than 16 chunks, for which no sleeping worker is woken (runtime/plan_run.c). */
static const double slice_of_streams = 500e3, least_of_streams = 8e6;
/* slices of 10 us that it takes to widen one element of a block to a float: 0.1 ns */
static const double widen_slices = 1e-5;

typedef struct plan {
    agk_mm_dots dots;
    int64_t per_chunk;  /* items in a chunk; an item is a block of rows times all columns */
    int64_t col_chunk;  /* columns in a chunk of the first step */
    int32_t row_blocks; /* in each batch */
    int32_t k_block;
} plan;

AGK_PLAN_IN_AUX(plan, plan_of)

/* -- which kernels -------------------------------------------------------------------------------------------- */

static bool serves_q8(const agk_mm_problem *p)
{
    return (p->b == AGK_F32 || p->b == AGK_Q8_0) && agk_traits(p->a)->blck_size > 1 &&
           agk_mm_kernel_of_type("mm_dots_", p->a, p->cpu) != NULL;
}

static bool serves_bf16(const agk_mm_problem *p)
{
    return p->a == AGK_BF16 && agk_pick_vector("mm_dots_bf16_bf16", p->cpu) != NULL;
}

static bool serves_f32(const agk_mm_problem *p)
{
    (void)p; /* serves every product that mul_mat accepts */
    return true;
}

static agk_mm_dots dots_q8(int a, int b, uint32_t cpu)
{
    return (agk_mm_dots){.product = (agk_mm_block_fn *)agk_mm_kernel_of_type("mm_dots_", a, cpu),
                         .columns = agk_mm_to_q8(b, cpu)};
}

static agk_mm_dots dots_bf16(int b, uint32_t cpu)
{
    agk_mm_dots dots = {.product = AGK_PICK(mm_dots_bf16_bf16, cpu)};
    if (b == AGK_F32) {
        dots.columns = (agk_mm_conversion){AGK_MM_BF16, (agk_any_fn *)AGK_PICK(f32_to_bf16, cpu)};
    }
    return dots;
}

static agk_mm_dots dots_f32(int a, int b, uint32_t cpu)
{
    agk_mm_dots dots = {.columns = agk_mm_to_floats(b, cpu)};
    dots.product = a == AGK_F16    ? AGK_PICK(mm_dots_f16, cpu)
                   : a == AGK_BF16 ? AGK_PICK(mm_dots_bf16, cpu)
                                   : AGK_PICK(mm_dots_f32, cpu);
    if (agk_traits(a)->blck_size > 1) dots.rows = agk_mm_to_floats(a, cpu);
    return dots;
}

agk_mm_dots agk_mm_dots_of(int a, int b, bool as_floats, bool exact, uint32_t cpu)
{
    const agk_mm_problem p = {.a = a, .b = b, .cpu = cpu};
    if (exact) return dots_f32(a, b, cpu);
    if (serves_q8(&p)) return dots_q8(a, b, cpu);
    if (!as_floats && serves_bf16(&p)) return dots_bf16(b, cpu);
    return dots_f32(a, b, cpu);
}

/* -- steps ---------------------------------------------------------------------------------------------------- */

static agk_status convert_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const plan p = plan_of(node);
    const agk_view *b = &node->src[1];
    const int64_t n = b->ne[1], all = agk_nrows(b);
    const size_t bytes = agk_mm_col_bytes(p.dots.columns.form, b->ne[0]);
    for (int64_t i = chunk * p.col_chunk; i < agk_mm_least(all, (chunk + 1) * p.col_chunk); ++i) {
        const agk_mm_matrices m = agk_mm_matrices_of(task, node, i / n);
        agk_mm_convert(&p.dots.columns, m.b + i % n * b->nb[1], (char *)agk_work(task, node) + (size_t)i * bytes,
                       b->ne[0]);
    }
    return AGK_OK;
}

/* Bytes of an element of a converted column. For blocks, which are never cut along k: bytes of a block. */
static size_t column_element(const plan *p, int type)
{
    const agk_mm_form form = p->dots.columns.form;
    return form == AGK_MM_BF16 ? 2 : form == AGK_MM_FLOATS ? 4 : agk_traits(type)->type_size;
}

/* Rows first .. last - 1 of one matrix times all its columns. It goes block of k by block of k, so that the columns
 * stay in L1. Quantized rows that are read as they lie are not cut along k. */
static void multiply_rows(const agk_task *task, const agk_node *node, const plan *p, int64_t batch, int64_t first,
                          int64_t last)
{
    const agk_view *a = &node->src[0], *b = &node->src[1], *c = &node->dst;
    const agk_mm_conversion *widen = &p->dots.rows;
    const agk_mm_matrices m = agk_mm_matrices_of(task, node, batch);
    const int64_t k = a->ne[0], step = widen->form == AGK_MM_AS_IT_IS ? last - first : AGK_MM_WIDENED_ROWS;
    agk_mm_block block = {.cols = b->ne[1], .lda = (size_t)a->nb[1], .ldb = (size_t)b->nb[1], .ldc = (size_t)c->nb[1]};
    const char *columns = m.b;
    const size_t element = column_element(p, b->type);
    if (p->dots.columns.form != AGK_MM_AS_IT_IS) {
        block.ldb = agk_mm_col_bytes(p->dots.columns.form, k);
        columns = (char *)agk_work(task, node) + (size_t)(batch * b->ne[1]) * block.ldb;
    }
    int64_t k0 = 0;
    do { /* one pass even if k is 0: the result is zeros */
        block.k = agk_mm_least(p->k_block, k - k0);
        block.b = columns + (size_t)k0 * element;
        block.add = k0 > 0;
        for (int64_t row = first; row < last; row += step) {
            agk_breathe(task);
            block.rows = agk_mm_least(step, last - row);
            block.a = m.a + row * a->nb[1] + (int64_t)agk_row_size(a->type, k0);
            block.c = (float *)(void *)m.c + row;
            if (widen->form != AGK_MM_AS_IT_IS) {
                agk_mm_widen_rows(node, widen, block.a, block.rows, block.k, task->scratch);
                block.a = task->scratch;
                block.lda = agk_mm_row_bytes(widen->form, block.k);
            }
            p->dots.product(&block);
            if (k0 + block.k >= k) agk_mm_stages(task, node, batch, row, block.rows, 0, block.cols);
        }
        k0 += block.k;
    } while (k0 < k);
}

static agk_status product_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const plan p = plan_of(node);
    const int64_t m = node->dst.ne[0], all = p.row_blocks * node->dst.ne[2] * node->dst.ne[3];
    for (int64_t i = chunk * p.per_chunk; i < agk_mm_least(all, (chunk + 1) * p.per_chunk); ++i) {
        const int64_t block = i % p.row_blocks, fours = agk_mm_ceil_div(m, 4);
        const int64_t first = fours * block / p.row_blocks * 4, last = fours * (block + 1) / p.row_blocks * 4;
        multiply_rows(task, node, &p, i / p.row_blocks, first, agk_mm_least(last, m));
    }
    return AGK_OK;
}

/* -- how a node is cut ---------------------------------------------------------------------------------------- */

/* Decides on the blocks of rows and the items of a chunk: some 10 us for each. */
static void cut(const agk_node *node, uint32_t cpu, plan *p)
{
    const agk_view *a = &node->src[0], *b = &node->src[1];
    const double row_flops = 2.0 * (double)a->ne[0] * (double)b->ne[1];
    const double bytes = (double)agk_row_size(a->type, a->ne[0]) * (double)(a->ne[1] * b->ne[2] * b->ne[3]);
    const bool streams =
        (cpu & AGK_ZEN5) != 0 && b->ne[1] == 1 && p->dots.columns.form != AGK_MM_Q8 && bytes >= least_of_streams;
    const double read = streams ? slice_of_streams : slice_read;
    const double widening = p->dots.rows.form != AGK_MM_AS_IT_IS ? widen_slices * (double)a->ne[0] : 0.0;
    const double row_slices =
        row_flops / agk_mm_slice_flops + (double)agk_row_size(a->type, a->ne[0]) / read + widening;
    const double batch_slices = row_slices * (double)a->ne[1];
    const int64_t batches = b->ne[2] * b->ne[3], most = agk_mm_ceil_div(a->ne[1], 4);
    const double blocks = batch_slices * (double)batches <= 1.5 ? 1.0 : batch_slices + 0.5;
    p->row_blocks = (int32_t)(blocks < 1.0 ? 1 : blocks < (double)most ? (int64_t)blocks : most);
    const double per_chunk = (double)p->row_blocks / batch_slices;
    p->per_chunk = per_chunk < 1.0 ? 1 : (int64_t)(per_chunk < 1e6 ? per_chunk : 1e6);
    if (batch_slices * (double)batches <= 1.5) p->per_chunk = p->row_blocks * batches;
}

static bool lower(agk_lowering *lowering, agk_mm_dots dots)
{
    const agk_view *a = &lowering->node->src[0], *b = &lowering->node->src[1];
    const bool quantized = agk_traits(a->type)->blck_size > 1;
    const int64_t k = a->ne[0] > 0 ? a->ne[0] : 1, grain = quantized ? AGK_MM_K_GRAIN : DOT_K;
    plan p = {.dots = dots};
    const int64_t most = b->ne[1] == 1 ? ONE_COLUMN : L1_ELEMENTS / b->ne[1] / grain * grain;
    p.k_block = (int32_t)(dots.columns.form == AGK_MM_Q8 ? k : agk_mm_least(k, most));
    cut(lowering->node, lowering->cpu, &p);
    if (dots.rows.form != AGK_MM_AS_IT_IS) {
        lowering->scratch_size = AGK_MM_WIDENED_ROWS * agk_mm_row_bytes(dots.rows.form, p.k_block);
    }
    if (dots.columns.form != AGK_MM_AS_IT_IS) {
        const int64_t columns = agk_nrows(b);
        lowering->work_size = (size_t)columns * agk_mm_col_bytes(dots.columns.form, b->ne[0]);
        p.col_chunk = agk_mm_least(columns, 1 + AGK_MM_SLICE_BYTES / (int64_t)(agk_row_size(b->type, b->ne[0]) + 1));
        agk_add_step(lowering, convert_step, agk_mm_ceil_div(columns, p.col_chunk));
    }
    const int64_t items = p.row_blocks * b->ne[2] * b->ne[3];
    agk_add_step(lowering, product_step, agk_mm_ceil_div(items, p.per_chunk));
    memcpy(&lowering->node->aux, &p, sizeof p);
    return true;
}

static bool lower_q8(agk_lowering *lowering)
{
    return lower(lowering, dots_q8(lowering->node->src[0].type, lowering->node->src[1].type, lowering->cpu));
}

static bool lower_bf16(agk_lowering *lowering)
{
    return lower(lowering, dots_bf16(lowering->node->src[1].type, lowering->cpu));
}

static bool lower_f32(agk_lowering *lowering)
{
    const agk_view *b = &lowering->node->src[1];
    agk_mm_dots dots = dots_f32(lowering->node->src[0].type, b->type, lowering->cpu);
    if (b->type == AGK_F32 && b->ne[1] > 4 && b->nb[1] % 4096 == 0) {
        /* Left as they lie, all columns would fall into the same set of L1, so they are copied. */
        dots.columns = (agk_mm_conversion){AGK_MM_FLOATS, (agk_any_fn *)agk_traits(AGK_F32)->to_float};
    }
    return lower(lowering, dots);
}

const agk_mm_scheme agk_mm_dots_q8 = {"dots_q8", serves_q8, lower_q8, false};
const agk_mm_scheme agk_mm_dots_bf16 = {"dots_bf16", serves_bf16, lower_bf16, false};
const agk_mm_scheme agk_mm_dots_f32 = {"dots_f32", serves_f32, lower_f32, true};
