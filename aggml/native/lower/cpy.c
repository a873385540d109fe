/* cpy, cont, dup: copy the elements of a tensor, in logical order, into another one of any type, strides and shape.
 *
 * Here: the lowering, copies of elements with conversion. Not here: copies within a type (copy.c), which row
 * conversions a type has (formats/types.c), the conversions themselves (formats/). */
#include "copy.h"
#include "table/kernel_types.h"
#include "units.h"

enum { READ, WRITE, TRANSPOSE, DENSE_X, DENSE_Y, ROW, PLANES }; /* slots of node->aux */

/* Moves elements first .. first+n-1 in logical order between a view and a buffer without gaps, in whole runs. */
static void stream(const agk_view *view, char *data, bool to_view, int64_t first, int64_t n, char *buffer)
{
    const agk_type_traits *traits = agk_traits(view->type);
    const int64_t size = (int64_t)traits->type_size, row = view->ne[0] / traits->blck_size;
    first /= traits->blck_size;
    n /= traits->blck_size;
    int64_t i0 = first % row, i1 = first / row % view->ne[1], i2 = first / row / view->ne[1] % view->ne[2];
    int64_t i3 = first / row / view->ne[1] / view->ne[2];
    while (n > 0) {
        const int64_t run = row - i0 < n ? row - i0 : n;
        char *p = data + i0 * view->nb[0] + i1 * view->nb[1] + i2 * view->nb[2] + i3 * view->nb[3];
        if (view->nb[0] == size) {
            if (to_view)
                memcpy(p, buffer, (size_t)(run * size));
            else
                memcpy(buffer, p, (size_t)(run * size));
        } else {
            for (int64_t k = 0; k < run; ++k) {
                if (to_view)
                    memcpy(p + k * view->nb[0], buffer + k * size, (size_t)size);
                else
                    memcpy(buffer + k * size, p + k * view->nb[0], (size_t)size);
            }
        }
        buffer += run * size;
        n -= run;
        i0 = 0;
        if (++i1 < view->ne[1]) continue;
        i1 = 0;
        if (++i2 < view->ne[2]) continue;
        i2 = 0;
        ++i3;
    }
}

static char *dense_at(const agk_view *view, char *data, int64_t i)
{
    return data + agk_row_size(view->type, i);
}

/* Blocks of AGK_BLOCK elements are gathered, converted by way of f32, and scattered. Elements without gaps stay in
 * place. */
static agk_status run_convert(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *dst = &node->dst, *src = &node->src[0];
    char *y = agk_data(task, dst), *x = agk_data(task, src);
    agk_to_float_fn *read = (agk_to_float_fn *)node->aux.fn[READ];
    agk_from_float_fn *write = (agk_from_float_fn *)node->aux.fn[WRITE];
    const int64_t per_chunk = node->aux.i[AGK_PER_CHUNK] * AGK_BLOCK, total = agk_nelements(src);
    _Alignas(64) char in[8 * AGK_BLOCK], out[8 * AGK_BLOCK];
    _Alignas(64) float middle[AGK_BLOCK];
    const int64_t last = agk_chunk_end(chunk, per_chunk, total);
    if (node->aux.i[DENSE_X] && node->aux.i[DENSE_Y] && src->type != dst->type &&
        (src->type == AGK_F32 || dst->type == AGK_F32)) { /* one conversion, and nothing to gather */
        const int64_t first = chunk * per_chunk;
        const char *from = dense_at(src, x, first);
        char *to = dense_at(dst, y, first);
        if (src->type == AGK_F32)
            write((const float *)(const void *)from, to, last - first);
        else
            read(from, (float *)(void *)to, last - first);
        return AGK_OK;
    }
    for (int64_t i = chunk * per_chunk; i < last; i += AGK_BLOCK) {
        const int64_t n = last - i < AGK_BLOCK ? last - i : AGK_BLOCK;
        char *from = in, *to = node->aux.i[DENSE_Y] ? dense_at(dst, y, i) : out;
        if (node->aux.i[DENSE_X])
            from = dense_at(src, x, i);
        else
            stream(src, x, false, i, n, in);
        if (src->type == dst->type) {
            memmove(to, from, agk_row_size(src->type, n));
        } else if (src->type == AGK_F32) {
            write((const float *)(const void *)from, to, n);
        } else if (dst->type == AGK_F32) {
            read(from, (float *)(void *)to, n);
        } else {
            read(from, middle, n);
            write(middle, to, n);
        }
        if (to == out) stream(dst, y, true, i, n, out);
    }
    return AGK_OK;
}

/* Whether it has no gaps, so that it can be viewed in any shape. */
static bool is_dense(const agk_view *view)
{
    const agk_type_traits *traits = agk_traits(view->type);
    if (view->ne[0] > traits->blck_size && view->nb[0] != (int64_t)traits->type_size) return false;
    int64_t expected = (int64_t)agk_row_size(view->type, view->ne[0]);
    for (int d = 1; d < 4; ++d) {
        if (view->ne[d] > 1 && view->nb[d] != expected) return false;
        expected *= view->ne[d];
    }
    return true;
}

static agk_view dense_as(const agk_view *view, const int64_t ne[4])
{
    agk_view seen = *view;
    seen.nb[0] = (int64_t)agk_traits(view->type)->type_size;
    seen.nb[1] = (int64_t)agk_row_size(view->type, ne[0]);
    seen.nb[2] = seen.nb[1] * ne[1];
    seen.nb[3] = seen.nb[2] * ne[2];
    memcpy(seen.ne, ne, sizeof seen.ne);
    return seen;
}

/* Brings target and source to one shape: a contiguous one takes the shape of the other. */
static agk_copy plan_of(const agk_node *node)
{
    const agk_view *dst = &node->dst, *src = &node->src[0];
    const agk_view y = node->aux.i[DENSE_Y] ? dense_as(dst, src->ne) : *dst;
    const agk_view x = node->aux.i[DENSE_Y] || !node->aux.i[DENSE_X] ? *src : dense_as(src, dst->ne);
    agk_copy copy = agk_copy_plan(&y, &x, node->aux.fn[TRANSPOSE], node->aux.fn[ROW]);
    if (node->aux.i[PLANES]) agk_copy_by_planes(&copy);
    return copy;
}

static agk_status run_copy(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_copy copy = plan_of(node);
    const agk_range units = agk_units_of(node, chunk);
    agk_copy_run(&copy, agk_data(task, &node->dst), agk_data(task, &node->src[0]), units.first, units.last);
    return AGK_OK;
}

/* Rows that are contiguous on both sides are converted in place. */
static agk_copy rows_of(const agk_node *node)
{
    const agk_view *dst = &node->dst, *src = &node->src[0];
    const bool same = agk_same_shape(dst, src);
    const agk_view y = !same && node->aux.i[DENSE_Y] ? dense_as(dst, src->ne) : *dst;
    const agk_view x = same || node->aux.i[DENSE_Y] ? *src : dense_as(src, dst->ne);
    agk_copy copy = agk_copy_rows_plan(&y, &x);
    if (src->type == AGK_F32)
        copy.write = (agk_from_float_fn *)node->aux.fn[WRITE];
    else
        copy.read = (agk_to_float_fn *)node->aux.fn[READ];
    return copy;
}

static agk_status run_rows(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_copy copy = rows_of(node);
    const agk_range units = agk_units_of(node, chunk);
    agk_copy_run(&copy, agk_data(task, &node->dst), agk_data(task, &node->src[0]), units.first, units.last);
    return AGK_OK;
}

/* Whether run_rows can do it, and rows are not too short: a call takes as long as some 30 elements. */
static bool by_rows(const agk_node *node)
{
    const agk_view *dst = &node->dst, *src = &node->src[0];
    const agk_type_traits *to = agk_traits(dst->type), *from = agk_traits(src->type);
    const bool one_f32 = (src->type == AGK_F32) != (dst->type == AGK_F32);
    if (!one_f32 || to->blck_size > 1 || from->blck_size > 1 || dst->nb[0] != (int64_t)to->type_size) return false;
    if (src->nb[0] != (int64_t)from->type_size || (node->aux.i[DENSE_X] && node->aux.i[DENSE_Y])) return false;
    if (!agk_same_shape(dst, src) && !node->aux.i[DENSE_X] && !node->aux.i[DENSE_Y]) return false;
    return rows_of(node).loop.ne[0] >= 64;
}

/* Both sides without gaps. */
static agk_status run_bytes(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_range units = agk_units_of(node, chunk);
    ((agk_cpy_row_fn *)node->aux.fn[ROW])(units.last - units.first, (char *)agk_data(task, &node->dst) + units.first,
                                          (const char *)agk_data(task, &node->src[0]) +
                                              units.first); /* dup in place copies onto itself */
    return AGK_OK;
}

static bool is_float(int type)
{
    return type == AGK_F32 || type == AGK_F16 || type == AGK_BF16;
}

/* Whether ggml converts between these types: floats to floats and to blocks, blocks to f32, f32 to i32 and back. */
static bool converts(int from, int to)
{
    if (from == to) return agk_traits(from)->name != NULL;
    if (from == AGK_I32) return to == AGK_F32;
    if (to == AGK_I32) return from == AGK_F32;
    if (is_float(from)) return agk_traits(to)->from_float != NULL;
    return to == AGK_F32 && agk_traits(from)->to_float != NULL;
}

static void add_step(agk_lowering *lowering, agk_step_fn *run, int64_t units, double unit_ns, int64_t grain)
{
    const int64_t per_chunk = agk_units_per_chunk(units, unit_ns);
    agk_add_step(
        lowering, run,
        agk_cut(lowering->node, units, per_chunk > grain && per_chunk < units ? per_chunk / grain * grain : per_chunk));
}

/* On a Zen 5, heads and tokens that change places are copied plane by plane if the result takes a large part of an L3
 * (f32, 16 MB, two threads: 356 us instead of 455; half of the gain is due to the prefetches). 8 MB of f16 take 130 us
 * in both orders. */
static bool by_planes(const agk_lowering *lowering)
{
    enum { MUCH = 8 << 20 };
    const agk_view *dst = &lowering->node->dst;
    return (lowering->cpu & AGK_ZEN5) != 0 && agk_row_size(dst->type, agk_nelements(dst)) > MUCH;
}

agk_status agk_lower_cpy(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *src = &node->src[0];
    if (!converts(src->type, dst->type)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "there is no conversion from %s to %s", agk_type_name(src->type),
                          agk_type_name(dst->type));
    }
    const int64_t n = agk_nelements(dst);
    if (n != agk_nelements(src)) {
        return agk_refuse(lowering, AGK_INVALID, "%lld elements are copied into a tensor of %lld",
                          (long long)agk_nelements(src), (long long)n);
    }
    const int64_t blck_x = agk_traits(src->type)->blck_size, blck_y = agk_traits(dst->type)->blck_size;
    if (src->ne[0] % blck_x != 0 || dst->ne[0] % blck_y != 0) {
        return agk_refuse(lowering, AGK_INVALID, "rows of %lld %s or rows of %lld %s are no whole number of blocks",
                          (long long)src->ne[0], agk_type_name(src->type), (long long)dst->ne[0],
                          agk_type_name(dst->type));
    }
    if (n == 0) return AGK_OK;

    const bool same = agk_same_shape(dst, src), dense_x = is_dense(src), dense_y = is_dense(dst);
    node->aux.fn[ROW] = (agk_any_fn *)AGK_PICK(cpy_row, lowering->cpu);
    if (src->type == dst->type && dense_x && dense_y) {
        add_step(lowering, run_bytes, (int64_t)agk_row_size(dst->type, dst->ne[0]) * agk_nrows(dst), 0.05, 4096);
        return AGK_OK;
    }
    node->aux.i[DENSE_X] = dense_x && !same;
    node->aux.i[DENSE_Y] = dense_y && !same;
    if (src->type == dst->type && (same || dense_x || dense_y)) {
        node->aux.fn[TRANSPOSE] = agk_copy_transpose(dst->type, lowering->cpu);
        node->aux.i[PLANES] = by_planes(lowering);
        const agk_copy copy = plan_of(node);
        add_step(lowering, run_copy, copy.units, agk_copy_ns(dst, copy.units), 1);
        return AGK_OK;
    }
    node->aux.i[DENSE_X] = dense_x;
    node->aux.i[DENSE_Y] = dense_y;
    node->aux.fn[READ] = src->type == AGK_I32 ? (agk_any_fn *)AGK_PICK(cpy_from_i32, lowering->cpu)
                                              : (agk_any_fn *)agk_reader(src->type, lowering->cpu);
    node->aux.fn[WRITE] = dst->type == AGK_I32 ? (agk_any_fn *)AGK_PICK(cpy_to_i32, lowering->cpu)
                                               : (agk_any_fn *)agk_writer(dst->type, lowering->cpu);
    if (by_rows(node)) {
        const agk_copy copy = rows_of(node);
        add_step(lowering, run_rows, copy.units, 0.25 * (double)n / (double)copy.units + 10.0, 1);
        return AGK_OK;
    }
    const double ns =
        (blck_y > 1 ? agk_traits(dst->type)->write_ns : 0.2) + (dense_x ? 0.0 : 0.3) + (dense_y ? 0.0 : 0.3);
    add_step(lowering, run_convert, (n + AGK_BLOCK - 1) / AGK_BLOCK, ns * AGK_BLOCK, 1);
    return AGK_OK;
}
