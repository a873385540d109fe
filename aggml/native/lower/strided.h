/* Walks over several strided operands: dimensions are merged where all operands allow it, and the work is cut into
 * units.
 *
 * Here: loops over up to three operands, and ports that read any type as f32 and write f32 as any type. Not here:
 * what is computed (the groups of ops). */
#ifndef AGK_STRIDED_H
#define AGK_STRIDED_H

#include "node.h"

enum {
    AGK_MAX_DIMS = 8,   /* four dimensions, each split once where an operand repeats */
    AGK_SEGMENT = 4096, /* elements of a row in one unit of work; a multiple of every block size */
    AGK_BLOCK = 512,    /* elements converted at a time: three blocks of f32 stay in L1 */
};

/* Dimension 0 is the row. stride: bytes from one element to the next, for each operand. */
typedef struct agk_loop {
    int n_dims;
    bool solid; /* a row of quantized blocks: dimension 0 is never split or merged, and its strides mean nothing */
    int64_t ne[AGK_MAX_DIMS];
    int64_t stride[3][AGK_MAX_DIMS];
} agk_loop;

/* A row of the loop: the index in each dimension from 1 on, and the offset of its first element in each operand. */
typedef struct agk_cursor {
    int64_t index[AGK_MAX_DIMS];
    int64_t at[3];
} agk_cursor;

/* Adds the next outer dimension. It is merged into the one before if the strides of every operand allow it. */
static inline void agk_loop_push(agk_loop *loop, int64_t ne, int64_t s0, int64_t s1, int64_t s2)
{
    const int last = loop->n_dims - 1;
    if (last >= 0 && ne == 1) return;
    if (last > 0 || (last == 0 && !loop->solid)) {
        const int64_t n = loop->ne[last];
        const bool first = last == 0 && n == 1;
        if (first ||
            (s0 == n * loop->stride[0][last] && s1 == n * loop->stride[1][last] && s2 == n * loop->stride[2][last])) {
            if (first) {
                loop->stride[0][0] = s0;
                loop->stride[1][0] = s1;
                loop->stride[2][0] = s2;
            }
            loop->ne[last] = n * ne;
            return;
        }
    }
    loop->ne[last + 1] = ne;
    loop->stride[0][last + 1] = s0;
    loop->stride[1][last + 1] = s1;
    loop->stride[2][last + 1] = s2;
    ++loop->n_dims;
}

/* The loop over two operands of the same shape. Quantized rows are not merged. */
static inline agk_loop agk_loop_pair(const agk_view *a, const agk_view *b)
{
    agk_loop loop = {.n_dims = 0};
    loop.solid = agk_traits(a->type)->blck_size > 1 || agk_traits(b->type)->blck_size > 1;
    for (int d = 0; d < 4; ++d) agk_loop_push(&loop, a->ne[d], a->nb[d], b->nb[d], 0);
    return loop;
}

static inline int64_t agk_loop_rows(const agk_loop *loop)
{
    int64_t rows = 1;
    for (int d = 1; d < loop->n_dims; ++d) rows *= loop->ne[d];
    return rows;
}

static inline int64_t agk_loop_segments(const agk_loop *loop)
{
    return (loop->ne[0] + AGK_SEGMENT - 1) / AGK_SEGMENT;
}

/* Units of work: segments of rows. */
static inline int64_t agk_loop_units(const agk_loop *loop)
{
    return agk_loop_rows(loop) * agk_loop_segments(loop);
}

static inline agk_cursor agk_loop_seek(const agk_loop *loop, int64_t row)
{
    agk_cursor cursor = {.at = {0, 0, 0}};
    for (int d = 1; d < loop->n_dims; ++d) {
        const int64_t i = row % loop->ne[d];
        row /= loop->ne[d];
        cursor.index[d] = i;
        for (int k = 0; k < 3; ++k) cursor.at[k] += i * loop->stride[k][d];
    }
    return cursor;
}

static inline void agk_loop_next(const agk_loop *loop, agk_cursor *cursor)
{
    for (int d = 1; d < loop->n_dims; ++d) {
        for (int k = 0; k < 3; ++k) cursor->at[k] += loop->stride[k][d];
        if (++cursor->index[d] < loop->ne[d]) return;
        for (int k = 0; k < 3; ++k) cursor->at[k] -= loop->ne[d] * loop->stride[k][d];
        cursor->index[d] = 0;
    }
}

/* Calls body(context, n, i, at) for units first .. last-1: elements i .. i+n-1 of the row that begins at `at`. */
static inline void agk_loop_run(const agk_loop *loop, int64_t first, int64_t last,
                                void (*body)(void *context, int64_t n, int64_t i, const int64_t *at), void *context)
{
    const int64_t segments = agk_loop_segments(loop);
    int64_t segment = first % segments;
    agk_cursor cursor = agk_loop_seek(loop, first / segments);
    for (int64_t unit = first; unit < last; ++unit) {
        const int64_t i = segment * AGK_SEGMENT, rest = loop->ne[0] - i;
        body(context, rest < AGK_SEGMENT ? rest : AGK_SEGMENT, i, cursor.at);
        if (++segment == segments) {
            segment = 0;
            agk_loop_next(loop, &cursor);
        }
    }
}

/* Where row number `row` of dimensions 1 to 3 begins. */
static inline int64_t agk_row_at(const agk_view *view, int64_t row)
{
    const int64_t i1 = row % view->ne[1], plane = row / view->ne[1];
    return i1 * view->nb[1] + plane % view->ne[2] * view->nb[2] + plane / view->ne[2] * view->nb[3];
}

/* The number of units for which a chunk takes some 10 us; a node below 15 us is one chunk, and a long one has 64 chunks
 * of up to 40 us. It depends on the shape alone. (Two threads of a Zen 5, 16 MB from the L3, chunks of 10 and 40 us:
 * add of bf16 220 and 187 us, silu 346 and 325, silu of every second row 166 and 150.) */
static inline int64_t agk_units_per_chunk(int64_t units, double unit_ns)
{
    const double all = (double)units * unit_ns, part = all / 64.0;
    if (all < 15000.0) return units > 0 ? units : 1;
    const int64_t per_chunk = (int64_t)((part < 10000.0 ? 10000.0 : part < 40000.0 ? part : 40000.0) / unit_ns);
    return per_chunk < 1 ? 1 : per_chunk;
}

static inline int64_t agk_chunks(int64_t units, int64_t per_chunk)
{
    return (units + per_chunk - 1) / per_chunk;
}

static inline int64_t agk_chunk_end(int64_t chunk, int64_t per_chunk, int64_t units)
{
    const int64_t end = (chunk + 1) * per_chunk;
    return end < units ? end : units;
}

/* One operand of a loop: its address, the stride of elements in a row, the conversions to f32 and back. */
typedef struct agk_port {
    char *data;
    int64_t stride;
    int64_t size; /* bytes of an element, of a block if quantized */
    int64_t blck; /* elements of a block */
    bool direct;  /* contiguous f32: used in place */
    agk_to_float_fn *read;
    agk_from_float_fn *write;
} agk_port;

static inline agk_port agk_port_of(void *data, int type, int64_t stride)
{
    const agk_type_traits *traits = agk_traits(type);
    agk_port port = {.data = data, .stride = stride, .size = (int64_t)traits->type_size, .blck = traits->blck_size};
    port.direct = type == AGK_F32 && stride == 4;
    if (port.blck > 1) port.stride = port.size;
    return port;
}

static inline char *agk_port_at(const agk_port *port, int64_t at, int64_t i)
{
    return port->data + at + (port->blck == 1 ? i : i / port->blck) * port->stride;
}

/* Elements i .. i+n-1 of a row as f32: in place, or converted into buffer; n <= AGK_BLOCK. */
static inline const float *agk_port_read(const agk_port *port, int64_t at, int64_t i, int64_t n, float *buffer)
{
    const char *p = agk_port_at(port, at, i);
    if (port->direct) return (const float *)(const void *)p;
    if (port->stride == port->size) {
        port->read(p, buffer, n);
    } else if (port->size == 4) {
        for (int64_t k = 0; k < n; ++k) memcpy(&buffer[k], p + k * port->stride, 4);
    } else {
        uint16_t halves[AGK_BLOCK];
        for (int64_t k = 0; k < n; ++k) memcpy(&halves[k], p + k * port->stride, 2);
        port->read(halves, buffer, n);
    }
    return buffer;
}

/* Where f32 results go: in place, or into buffer until agk_port_commit. */
static inline float *agk_port_target(const agk_port *port, int64_t at, int64_t i, float *buffer)
{
    return port->direct ? (float *)(void *)agk_port_at(port, at, i) : buffer;
}

static inline void agk_port_commit(const agk_port *port, int64_t at, int64_t i, int64_t n, const float *buffer)
{
    char *p = agk_port_at(port, at, i);
    if (port->direct) return;
    if (port->stride == port->size) {
        port->write(buffer, p, n);
    } else if (port->size == 4) {
        for (int64_t k = 0; k < n; ++k) memcpy(p + k * port->stride, &buffer[k], 4);
    } else {
        uint16_t halves[AGK_BLOCK];
        port->write(buffer, halves, n);
        for (int64_t k = 0; k < n; ++k) memcpy(p + k * port->stride, &halves[k], 2);
    }
}

#endif
