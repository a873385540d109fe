/* Windowed attention of images, as in Segment Anything: win_part and win_unpart, get_rel_pos, add_rel_pos.
 *
 * Here: the lowering and the steps. A unit is a row of the result. */
#include "table/kernel_types.h"
#include "units.h"

enum { ROW }; /* slot of node->aux: the kernel that copies a run */

static void copy(const agk_node *node, int64_t bytes, char *y, const char *x)
{
    ((agk_cpy_row_fn *)node->aux.fn[ROW])(bytes, y, x);
}

/* a [c, w, h] is cut into windows [c, size, size, n], with zeros where they extend beyond the image; params: 0 and 1
 * numbers of windows, 2 size. */
static agk_status run_part(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const int64_t across = node->params[0], size = node->params[2], bytes = dst->ne[0] * 4;
    const char *x = agk_data(task, a);
    char *y = agk_data(task, dst);
    const agk_range units = agk_units_of(node, chunk);
    /* a run is several neighbours in one line of a window */
    for (int64_t row = units.first, run; row < units.last; row += run) {
        const int64_t window = row / size / size, in_line = row % size, line = row / size % size;
        const int64_t i1 = window % across * size + in_line, i2 = window / across * size + line;
        run = size - in_line < units.last - row ? size - in_line : units.last - row;
        const int64_t left = i2 < a->ne[2] ? a->ne[1] - i1 : 0, inside = left < 0 ? 0 : left < run ? left : run;
        const char *from = x + i1 * a->nb[1] + i2 * a->nb[2];
        char *to = y + in_line * dst->nb[1] + line * dst->nb[2] + window * dst->nb[3];
        if (a->nb[0] == 4 && a->nb[1] == bytes && dst->nb[1] == bytes) {
            if (inside > 0) copy(node, inside * bytes, to, from);
            memset(to + inside * bytes, 0, (size_t)((run - inside) * bytes));
            continue;
        }
        for (int64_t i = 0; i < run; ++i) {
            if (i < inside)
                agk_gather_32(to + i * dst->nb[1], from + i * a->nb[1], a->nb[0], dst->ne[0]);
            else
                memset(to + i * dst->nb[1], 0, (size_t)bytes);
        }
    }
    return AGK_OK;
}

/* The reverse; params: 0 size. */
static agk_status run_unpart(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const int64_t size = node->params[0], across = (dst->ne[1] + size - 1) / size;
    const char *x = agk_data(task, a);
    char *y = agk_data(task, dst);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t row = units.first; row < units.last;) { /* goes by rows that are in one line of a window */
        const int64_t i2 = row / dst->ne[1], i1 = row - i2 * dst->ne[1], column = i1 / size, line = i2 / size;
        const int64_t first = i1 - column * size, window = line * across + column;
        int64_t n = size - first < dst->ne[1] - i1 ? size - first : dst->ne[1] - i1;
        if (n > units.last - row) n = units.last - row;
        const char *from = x + first * a->nb[1] + (i2 - line * size) * a->nb[2] + window * a->nb[3];
        char *to = y + i1 * dst->nb[1] + i2 * dst->nb[2];
        if (a->nb[0] == 4 && a->nb[1] == dst->ne[0] * 4 && dst->nb[1] == a->nb[1]) {
            copy(node, n * a->nb[1], to, from);
            row += n;
            continue;
        }
        for (const int64_t end = row + n; row < end; ++row, from += a->nb[1], to += dst->nb[1]) {
            agk_gather_32(to, from, a->nb[0], dst->ne[0]);
        }
    }
    return AGK_OK;
}

/* a [c, 2 n - 1] -> [c, n, n]: row (k, q) is that of the distance n - 1 - k + q. Bits are copied, of bf16 as well. */
static agk_status run_rel_pos(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const char *x = agk_data(task, a);
    char *y = agk_data(task, dst);
    const agk_range units = agk_units_of(node, chunk);
    const bool dense = a->nb[0] == 2 && dst->nb[0] == 2;
    const int64_t n = dst->ne[1], bytes = dst->ne[0] * 2;
    int64_t k = units.first % n, q = units.first / n;
    for (int64_t row = units.first; row < units.last; ++row) {
        if (dense && dst->nb[1] == bytes && k > 0 && row - n - 1 >= units.first) { /* what row (k - 1, q - 1) has */
            const int64_t run = n - k < units.last - row ? n - k : units.last - row;
            char *to = y + k * bytes + q * dst->nb[2];
            copy(node, run * bytes, to, to - bytes - dst->nb[2]);
            row += run - 1;
            k = 0;
            ++q;
            continue;
        }
        const char *from = x + (n - 1 - k + q) * a->nb[1];
        char *to = y + k * dst->nb[1] + q * dst->nb[2];
        if (++k == n) {
            k = 0;
            ++q;
        }
        if (dense && bytes % 16 == 0 && bytes <= 256) { /* faster than a call of memcpy */
            for (int64_t i = 0; i < bytes; i += 16) memcpy(to + i, from + i, 16);
            continue;
        }
        if (dense) {
            copy(node, bytes, to, from);
            continue;
        }
        for (int64_t i = 0; i < dst->ne[0]; ++i) memcpy(to + i * dst->nb[0], from + i * a->nb[0], 2);
    }
    return AGK_OK;
}

/* a [n n, ..] + ph [n, ..] for each line of a row + pw [n, ..] for each column; dst may be a. */
static agk_status run_add(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *a = &node->src[0], *pw = &node->src[1], *ph = &node->src[2], *dst = &node->dst;
    const int64_t n = pw->ne[0];
    const char *x = agk_data(task, a), *wide = agk_data(task, pw), *high = agk_data(task, ph);
    char *y = agk_data(task, dst);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t row = units.first; row < units.last; ++row) {
        const char *from = x + agk_row_offset(a, row);
        const char *columns = wide + agk_row_offset(pw, row), *lines = high + agk_row_offset(ph, row);
        char *to = y + agk_row_offset(dst, row);
        const bool dense = a->nb[0] == 4 && pw->nb[0] == 4 && dst->nb[0] == 4;
        for (int64_t i = 0; i < n; ++i) {
            const float line = agk_load(AGK_F32, lines + i * ph->nb[0]);
            if (dense) {
                const float *value = (const float *)(const void *)from + i * n;
                const float *column = (const float *)(const void *)columns;
                float *sum = (float *)(void *)to + i * n;
                for (int64_t j = 0; j < n; ++j) sum[j] = value[j] + line + column[j];
                continue;
            }
            for (int64_t j = 0; j < n; ++j) {
                const float value = agk_load(AGK_F32, from + (i * n + j) * a->nb[0]);
                agk_store(AGK_F32, to + (i * n + j) * dst->nb[0],
                          value + line + agk_load(AGK_F32, columns + j * pw->nb[0]));
            }
        }
    }
    return AGK_OK;
}

static bool fits_part(const agk_node *node)
{
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const int64_t across = node->params[0], down = node->params[1], size = node->params[2];
    return size > 0 && across == (a->ne[1] + size - 1) / size && down == (a->ne[2] + size - 1) / size &&
           a->ne[3] == 1 && dst->ne[0] == a->ne[0] && dst->ne[1] == size && dst->ne[2] == size &&
           dst->ne[3] == across * down;
}

static bool fits_unpart(const agk_node *node)
{
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const int64_t size = node->params[0];
    return size > 0 && a->ne[1] == size && a->ne[2] == size && dst->ne[0] == a->ne[0] && dst->ne[3] == 1 &&
           a->ne[3] == (dst->ne[1] + size - 1) / size * ((dst->ne[2] + size - 1) / size);
}

agk_status agk_lower_shape_window(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *pw = &node->src[1], *dst = &node->dst;
    agk_step_fn *run = run_part;
    bool fits, types = a->type == AGK_F32 && dst->type == AGK_F32;
    switch (node->op) {
    case AGK_OP_win_part: fits = fits_part(node); break;
    case AGK_OP_win_unpart:
        run = run_unpart;
        fits = fits_unpart(node);
        break;
    case AGK_OP_get_rel_pos:
        run = run_rel_pos;
        types = (a->type == AGK_F16 || a->type == AGK_BF16) && dst->type == AGK_F16;
        fits = dst->ne[0] == a->ne[0] && dst->ne[1] == dst->ne[2] && dst->ne[3] == 1 &&
               a->ne[1] == 2 * dst->ne[1] - 1 && agk_nrows(a) == a->ne[1];
        break;
    default:
        run = run_add;
        types = types && pw->type == AGK_F32 && node->src[2].type == AGK_F32;
        fits = agk_same_shape(dst, a) && agk_same_shape(pw, &node->src[2]) && pw->ne[0] * pw->ne[0] == a->ne[0] &&
               pw->ne[1] * pw->ne[2] == a->ne[1] && pw->ne[3] == a->ne[2] && a->ne[3] == 1;
    }
    if (!types) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s and the result is %s: this op does not take these types",
                          agk_type_name(a->type), agk_type_name(dst->type));
    }
    if (!fits) {
        return agk_refuse(lowering, AGK_INVALID,
                          "the result is %lld x %lld x %lld, which does not fit the %lld x %lld x %lld of a",
                          (long long)dst->ne[0], (long long)dst->ne[1], (long long)dst->ne[2], (long long)a->ne[0],
                          (long long)a->ne[1], (long long)a->ne[2]);
    }
    node->aux.fn[ROW] = (agk_any_fn *)AGK_PICK(cpy_row, lowering->cpu);
    agk_add_units(lowering, run, agk_nelements(dst) == 0 ? 0 : agk_nrows(dst), 10.0 + 0.3 * (double)dst->ne[0]);
    return AGK_OK;
}
