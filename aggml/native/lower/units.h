/* Work cut into units of equal size, for lowerings that need no finer decision.
 *
 * Here: two slots of node->aux that hold the cut, reading or writing single elements as f32, checks of operands. Not
 * here: loops over strided operands (strided.h). */
#ifndef AGK_UNITS_H
#define AGK_UNITS_H

#include "refuse.h"
#include "strided.h"

enum { AGK_PER_CHUNK = 10, AGK_UNITS = 11 }; /* slots of node->aux; 0 to 9 are left to the op */

typedef struct agk_range {
    int64_t first, last;
} agk_range;

/* Cuts units into chunks of `per_chunk` units, and returns the number of chunks. */
static inline int64_t agk_cut(agk_node *node, int64_t units, int64_t per_chunk)
{
    node->aux.i[AGK_UNITS] = units;
    node->aux.i[AGK_PER_CHUNK] = per_chunk;
    return agk_chunks(units, per_chunk);
}

/* Adds a step over `units` units of unit_ns each; if there are none, adds no step. */
static inline void agk_add_units(agk_lowering *lowering, agk_step_fn *run, int64_t units, double unit_ns)
{
    if (units <= 0) return;
    int64_t per_chunk = agk_units_per_chunk(units, unit_ns);
    /* A plan can have a million chunks, so tiny units of huge tensors are put into larger chunks. */
    while (agk_chunks(units, per_chunk) > 500000) per_chunk *= 2;
    agk_add_step(lowering, run, agk_cut(lowering->node, units, per_chunk));
}

static inline agk_range agk_units_of(const agk_node *node, int64_t chunk)
{
    const int64_t *aux = node->aux.i;
    return (agk_range){chunk * aux[AGK_PER_CHUNK], agk_chunk_end(chunk, aux[AGK_PER_CHUNK], aux[AGK_UNITS])};
}

/* Walks the units of a chunk: segments of the rows of a loop (agk_loop_run). */
static inline void agk_loop_run_chunk(const agk_loop *loop, const agk_node *node, int64_t chunk,
                                      void (*body)(void *context, int64_t n, int64_t i, const int64_t *at),
                                      void *context)
{
    const agk_range units = agk_units_of(node, chunk);
    agk_loop_run(loop, units.first, units.last, body, context);
}

/* The offset of row i1 + ne[1] * (i2 + ne[2] * i3). A division takes as long as copying 100 bytes. */
static inline int64_t agk_row_offset(const agk_view *v, int64_t row)
{
    if (row < v->ne[1]) return row * v->nb[1];
    const int64_t plane = row / v->ne[1], i1 = row - plane * v->ne[1];
    if (plane < v->ne[2]) return i1 * v->nb[1] + plane * v->nb[2];
    return i1 * v->nb[1] + plane % v->ne[2] * v->nb[2] + plane / v->ne[2] * v->nb[3];
}

/* The position of a row: its indices, and how to move to the next row without a division. */
typedef struct agk_row {
    int64_t i1, i2, i3;
} agk_row;

static inline agk_row agk_row_of(const agk_view *v, int64_t row)
{
    return (agk_row){row % v->ne[1], row / v->ne[1] % v->ne[2], row / v->ne[1] / v->ne[2]};
}

static inline void agk_row_next(const agk_view *v, agk_row *row)
{
    if (++row->i1 < v->ne[1]) return;
    row->i1 = 0;
    if (++row->i2 < v->ne[2]) return;
    row->i2 = 0;
    ++row->i3;
}

static inline bool agk_is_float(int type)
{
    return type == AGK_F32 || type == AGK_F16 || type == AGK_BF16;
}

/* Whether the elements of a row are contiguous. */
static inline bool agk_dense_row(const agk_view *v)
{
    const agk_type_traits *traits = agk_traits(v->type);
    return v->nb[0] == (int64_t)traits->type_size || v->ne[0] <= traits->blck_size;
}

/* Whether all elements lie in logical order without gaps. */
static inline bool agk_contiguous(const agk_view *v)
{
    int64_t expected = (int64_t)agk_row_size(v->type, v->ne[0]);
    if (!agk_dense_row(v)) return false;
    for (int d = 1; d < 4; ++d) {
        if (v->ne[d] > 1 && v->nb[d] != expected) return false;
        expected *= v->ne[d];
    }
    return true;
}

static inline float agk_load(int type, const char *p)
{
    float value;
    if (type == AGK_F32)
        memcpy(&value, p, sizeof value);
    else
        agk_traits(type)->to_float(p, &value, 1);
    return value;
}

static inline void agk_store(int type, char *p, float value)
{
    if (type == AGK_F32)
        memcpy(p, &value, sizeof value);
    else
        agk_traits(type)->from_float(&value, p, 1);
}

/* Copies n elements of 4 bytes that lie `stride` bytes apart to contiguous memory. */
static inline void agk_gather_32(char *to, const char *from, int64_t stride, int64_t n)
{
    if (stride == 4) {
        if (n > 0) memcpy(to, from, (size_t)n * 4);
        return;
    }
    for (int64_t i = 0; i < n; ++i) memcpy(to + 4 * i, from + i * stride, 4);
}

/* Reads n elements of a float type that lie `stride` bytes apart as f32. */
static inline void agk_load_row(int type, const char *p, int64_t stride, int64_t n, float *out)
{
    if (stride == (int64_t)agk_traits(type)->type_size) {
        agk_traits(type)->to_float(p, out, n);
    } else {
        for (int64_t i = 0; i < n; ++i) out[i] = agk_load(type, p + i * stride);
    }
}

static inline void agk_store_row(int type, char *p, int64_t stride, int64_t n, const float *in)
{
    if (stride == (int64_t)agk_traits(type)->type_size) {
        agk_traits(type)->from_float(in, p, n);
    } else {
        for (int64_t i = 0; i < n; ++i) agk_store(type, p + i * stride, in[i]);
    }
}

/* Refuses the node unless operand v has this type and the extents given here; negative extents are not checked. */
static inline agk_status agk_expect(agk_lowering *lowering, const char *name, const agk_view *v, int type, int64_t ne0,
                                    int64_t ne1, int64_t ne2, int64_t ne3)
{
    if (v->type != type) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "%s is %s, not %s", name, agk_type_name(v->type),
                          agk_type_name(type));
    }
    const int64_t ne[4] = {ne0, ne1, ne2, ne3};
    for (int d = 0; d < 4; ++d) {
        if (ne[d] < 0 || ne[d] == v->ne[d]) continue;
        return agk_refuse(lowering, AGK_INVALID, "%s has %lld elements in dimension %d, not %lld", name,
                          (long long)v->ne[d], d, (long long)ne[d]);
    }
    return AGK_OK;
}

/* Refuses the node unless operand a is f32 and the result has the same type and shape. */
static inline agk_status agk_expect_f32_like(agk_lowering *lowering, const agk_view *dst, const agk_view *a)
{
    const agk_status status = agk_expect_like(lowering, dst, a);
    if (status != AGK_OK || a->type == AGK_F32) return status;
    return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s, not f32", agk_type_name(a->type));
}

/* Refuses rows with gaps, which kernels of f32 cannot walk. */
static inline agk_status agk_expect_dense_rows(agk_lowering *lowering, const agk_view *dst, const agk_view *a)
{
    if (a->ne[0] <= 1 || (a->nb[0] == 4 && dst->nb[0] == 4)) return AGK_OK;
    return agk_refuse(lowering, AGK_UNSUPPORTED, "the elements of a row are %lld bytes apart, not 4",
                      (long long)(a->nb[0] != 4 ? a->nb[0] : dst->nb[0]));
}

#endif
