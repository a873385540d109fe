/* Copies between any strides (copy.h).
 *
 * Not here: the op that copies (cpy.c), conversions (formats/), transpositions (cpy.c of each folder of kernels/). */
#include "copy.h"
#include "table/kernel_types.h"

agk_any_fn *agk_copy_transpose(int type, uint32_t cpu)
{
    const size_t size = agk_traits(type)->type_size;
    if (size == 4) return (agk_any_fn *)AGK_PICK(cpy_transpose_32, cpu);
    return size == 2 ? (agk_any_fn *)AGK_PICK(cpy_transpose_16, cpu) : NULL;
}

static void swap_dims(agk_loop *loop, int a, int b)
{
    const int64_t n = loop->ne[a];
    loop->ne[a] = loop->ne[b];
    loop->ne[b] = n;
    for (int k = 0; k < 3; ++k) {
        const int64_t stride = loop->stride[k][a];
        loop->stride[k][a] = loop->stride[k][b];
        loop->stride[k][b] = stride;
    }
}

/* Heads and tokens that change places: the rows of a plane are far apart in one of the operands, and those of the next
 * planes lie between them. Then a thread goes through all planes with a few rows before it goes on to the next ones.
 * So it moves through both operands in the order of memory, on few pages at a time, and what the prefetcher loads
 * beyond a row is needed soon. (f32 to f16, rows of 512 bytes, two threads of a Zen 4: plane by plane 1020 us; with 32
 * rows at a time 550, with 4 rows 190.) */
static bool planes_between_rows(const agk_loop *loop)
{
    for (int k = 0; k < 2 && loop->n_dims > 2; ++k)
        if (loop->stride[k][2] < loop->stride[k][1]) return true;
    return false;
}

static bool dense_rows(const agk_copy *copy) /* in both operands */
{
    return copy->loop.stride[0][0] == copy->size && copy->loop.stride[1][0] == copy->size;
}

static void cut(agk_copy *copy, bool across)
{
    enum { STRIP = 32768, REGION = 65536 }; /* bytes of the rows of a strip; from its first to its last row */
    const agk_loop *loop = &copy->loop;
    const int64_t rows = loop->n_dims > 1 ? loop->ne[1] : 1, row_bytes = loop->ne[0] * copy->size;
    copy->strip = STRIP / (row_bytes > 0 ? row_bytes : 1);
    copy->across = across;
    if (copy->across) {
        for (int k = 0; k < 2; ++k)
            if (copy->strip * loop->stride[k][1] > REGION) copy->strip = REGION / loop->stride[k][1];
        if (copy->strip < 1) copy->strip = 1;
    } else {
        copy->strip &= ~(int64_t)15;
        if (copy->strip < 16) copy->strip = 16;
    }
    copy->strips = (rows + copy->strip - 1) / copy->strip;
    copy->units = copy->strips;
    for (int d = 2; d < loop->n_dims; ++d) copy->units *= loop->ne[d];
}

agk_copy agk_copy_plan(const agk_view *dst, const agk_view *src, agk_any_fn *transpose, agk_any_fn *row)
{
    const agk_type_traits *traits = agk_traits(dst->type);
    agk_copy copy = {.size = (int64_t)traits->type_size, .transpose = transpose, .row = row};
    agk_loop *loop = &copy.loop;
    agk_loop_push(loop, dst->ne[0] / traits->blck_size, dst->nb[0], src->nb[0], 0);
    for (int d = 1; d < 4; ++d) agk_loop_push(loop, dst->ne[d], dst->nb[d], src->nb[d], 0);
    /* First the dimension that is contiguous in the target, then the one that is contiguous in the source. */
    for (int d = 1; d < loop->n_dims && loop->stride[0][0] != copy.size; ++d) {
        if (loop->stride[0][d] == copy.size) swap_dims(loop, 0, d);
    }
    for (int d = 2; d < loop->n_dims && loop->stride[1][0] != copy.size && loop->stride[1][1] != copy.size; ++d) {
        if (loop->stride[1][d] == copy.size) swap_dims(loop, 1, d);
    }
    cut(&copy, dense_rows(&copy) && planes_between_rows(loop));
    return copy;
}

agk_copy agk_copy_rows_plan(const agk_view *dst, const agk_view *src)
{
    agk_copy copy = {.size = (int64_t)agk_traits(dst->type)->type_size};
    for (int d = 0; d < 4; ++d) agk_loop_push(&copy.loop, dst->ne[d], dst->nb[d], src->nb[d], 0);
    cut(&copy, planes_between_rows(&copy.loop));
    return copy;
}

void agk_copy_by_planes(agk_copy *copy)
{
    if (!copy->across) return;
    cut(copy, false);
    copy->asks = true;
}

static void copy_row(const agk_copy *copy, int64_t bytes, char *dst, const char *src)
{
    if (bytes > 64) {
        ((agk_cpy_row_fn *)copy->row)(bytes, dst, src); /* both may be the same place: dup in place */
        return;
    }
    int64_t i = 0;
    for (; i + 16 <= bytes; i += 16) {
        uint64_t two[2];
        memcpy(two, src + i, 16);
        memcpy(dst + i, two, 16);
    }
    for (; i + 4 <= bytes; i += 4) memcpy(dst + i, src + i, 4);
    for (; i < bytes; ++i) dst[i] = src[i];
}

enum { ASKED = 8 }; /* rows ahead */

static void ask_for(const agk_copy *copy, const char *row)
{
    for (int64_t i = 0; i < copy->loop.ne[0] * copy->size; i += 64) __builtin_prefetch(row + i);
}

static void copy_elements(const agk_copy *copy, int64_t rows, char *dst, const char *src)
{
    const agk_loop *loop = &copy->loop;
    for (int64_t j = 0; j < rows; ++j) {
        for (int64_t i = 0; i < loop->ne[0]; ++i) {
            char *y = dst + j * loop->stride[0][1] + i * loop->stride[0][0];
            const char *x = src + j * loop->stride[1][1] + i * loop->stride[1][0];
            if (copy->size == 4)
                memcpy(y, x, 4);
            else if (copy->size == 2)
                memcpy(y, x, 2);
            else
                memcpy(y, x, (size_t)copy->size);
        }
    }
}

static void copy_strip(const agk_copy *copy, int64_t rows, char *dst, const char *src)
{
    const agk_loop *loop = &copy->loop;
    const int64_t size = copy->size, n = loop->ne[0];
    if (copy->write != NULL || copy->read != NULL) {
        for (int64_t j = 0; j < rows; ++j) {
            char *y = dst + j * loop->stride[0][1];
            const char *x = src + j * loop->stride[1][1];
            if (copy->write != NULL)
                copy->write((const float *)(const void *)x, y, n);
            else
                copy->read(x, (float *)(void *)y, n);
        }
    } else if (dense_rows(copy)) {
        for (int64_t j = 0; j < rows; ++j) {
            if (copy->asks) ask_for(copy, src + (j + ASKED) * loop->stride[1][1]);
            copy_row(copy, n * size, dst + j * loop->stride[0][1], src + j * loop->stride[1][1]);
        }
    } else if (loop->stride[0][0] == size && loop->stride[1][1] == size && copy->transpose != NULL) {
        ((agk_cpy_transpose_32_fn *)copy->transpose)(n, rows, dst, loop->stride[0][1], src, loop->stride[1][0]);
    } else {
        copy_elements(copy, rows, dst, src);
    }
}

/* The planes of one dimension, without a cursor. That takes 7 % of the time for heads of f16, 3 % for f32 (Zen 5). */
static void copy_across(const agk_copy *copy, char *dst, const char *src, int64_t first, int64_t last)
{
    const agk_loop *loop = &copy->loop;
    const int64_t planes = loop->ne[2], bytes = loop->ne[0] * copy->size;
    const int64_t step_y = loop->stride[0][1], step_x = loop->stride[1][1];
    agk_cpy_row_fn *row = (agk_cpy_row_fn *)copy->row;
    int64_t strip = first / planes, plane = first % planes;
    for (int64_t unit = first; unit < last; ++unit) {
        const int64_t j = strip * copy->strip, rest = loop->ne[1] - j, rows = rest < copy->strip ? rest : copy->strip;
        char *y = dst + plane * loop->stride[0][2] + j * step_y;
        const char *x = src + plane * loop->stride[1][2] + j * step_x;
        for (int64_t i = 0; i < rows; ++i) row(bytes, y + i * step_y, x + i * step_x);
        if (++plane < planes) continue;
        plane = 0;
        ++strip;
    }
}

void agk_copy_run(const agk_copy *copy, char *dst, const char *src, int64_t first, int64_t last)
{
    if (copy->across && copy->write == NULL && copy->read == NULL && copy->loop.n_dims == 3) {
        copy_across(copy, dst, src, first, last);
        return;
    }
    agk_loop outer = {.n_dims = copy->loop.n_dims}; /* a cursor does not use dimensions 0 and 1 of it */
    for (int d = 2; d < outer.n_dims; ++d) {
        outer.ne[d - 1] = copy->loop.ne[d];
        for (int k = 0; k < 2; ++k) outer.stride[k][d - 1] = copy->loop.stride[k][d];
    }
    outer.n_dims = outer.n_dims > 2 ? outer.n_dims - 1 : 1;
    const int64_t rows = copy->loop.n_dims > 1 ? copy->loop.ne[1] : 1;
    const int64_t planes = copy->units / copy->strips;
    int64_t strip = copy->across ? first / planes : first % copy->strips;
    int64_t plane = copy->across ? first % planes : first / copy->strips;
    agk_cursor cursor = agk_loop_seek(&outer, plane);
    for (int64_t unit = first; unit < last; ++unit) {
        const int64_t j = strip * copy->strip, rest = rows - j;
        copy_strip(copy, rest < copy->strip ? rest : copy->strip, dst + cursor.at[0] + j * copy->loop.stride[0][1],
                   src + cursor.at[1] + j * copy->loop.stride[1][1]);
        if (copy->across) {
            agk_loop_next(&outer, &cursor); /* from the last plane it goes back to the first */
            if (++plane < planes) continue;
            plane = 0;
            ++strip;
        } else if (++strip == copy->strips) {
            strip = 0;
            agk_loop_next(&outer, &cursor);
        }
    }
}
