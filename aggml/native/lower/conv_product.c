/* conv_2d, conv_3d and the transposed ones as matrix products, 48 places at a time, without a matrix of windows in
 * memory.
 *
 * The rows of the product are weights. f32 weights are used as they lie; others are widened or transposed once, by a
 * first step. The columns are places, packed in units of 16 as in kernels/mul_mat.h: 16 neighbours of a line are
 * copied as they lie. Here: the lowering and the steps. Not here: single channels, strides along a line
 * (conv_direct.c), the kernel of a block (mul_mat). */
#include "copy.h"
#include "units.h"
#include "conv_geometry.h"
#include "lower/mul_mat/blocks.h"

enum {
    TILE = AGK_MM_MAX_UNITS * AGK_MM_UNIT, /* places of one product */
    DEPTH = 1024,                          /* weights of a row that are used at a time: 192 KB of packed places */
    /* the least rows of a transposed product, so that packing takes no more than a tenth of the time */
    LEAST_ROWS = 64,
};

enum { PRODUCT, TRANSPOSE, READ, WRITE, WIDE, TILES, BLOCKS, CHANNELS }; /* slots of node->aux */

static int64_t depth_of(const agk_conv *g)
{
    return g->channels * g->kernel[0] * g->kernel[1] * g->kernel[2];
}

static bool dense_image(const agk_view *v, int dims)
{
    int64_t expected = 4;
    for (int d = 0; d < dims; ++d) {
        if (v->ne[d] > 1 && v->nb[d] != expected) return false;
        expected *= v->ne[d];
    }
    return true;
}

/* Lanes of a unit that are neighbours in a line of the result: the first lane, the number of lanes, and their place. */
typedef struct run {
    int64_t lane, n, at[3];
} run;

static int runs_of(const agk_conv *g, int64_t place, int64_t n, run *runs)
{
    int count = 0;
    for (int64_t lane = 0; lane < n; ++count) {
        run *r = &runs[count];
        const int64_t i = place + lane;
        *r = (run){.lane = lane, .at = {i % g->out[0], i / g->out[0] % g->out[1], i / g->out[0] / g->out[1]}};
        r->n = agk_mm_least(n - lane, g->out[0] - r->at[0]);
        lane += r->n;
    }
    return count;
}

/* n lanes for one weight: elements of a line from `offset` on, zeros outside the line. */
static void put_lanes(float *out, int64_t n, const char *line, int64_t apart, int64_t inside, int64_t offset,
                      int64_t stride)
{
    if (stride == 1 && apart == 4 && offset >= 0 && offset + n <= inside) {
        const char *from = line + 4 * offset;
        if (n == AGK_MM_UNIT) {
            memcpy(out, from, AGK_MM_UNIT * sizeof *out);
        } else {
            memcpy(out, from, (size_t)n * sizeof *out);
        }
        return;
    }
    for (int64_t i = 0; i < n; ++i) {
        const int64_t at = offset + i * stride;
        out[i] = at >= 0 && at < inside ? agk_load(AGK_F32, line + at * apart) : 0.0f;
    }
}

/* Weights k0 .. k0 + k - 1 of 16 places (a unit) as [k][16]; b is the image of one sample. */
static void pack_unit(const agk_conv *g, const char *b, int64_t place, int64_t n, int64_t k0, int64_t k, float *out)
{
    run runs[AGK_MM_UNIT];
    const int count = runs_of(g, place, n, runs);
    if (n < AGK_MM_UNIT) memset(out, 0, (size_t)(k * AGK_MM_UNIT) * sizeof *out);
    for (int r = 0; r < count; ++r) {
        const int64_t *at = runs[r].at;
        int64_t x = k0 % g->kernel[0], y = k0 / g->kernel[0] % g->kernel[1];
        int64_t z = k0 / g->kernel[0] / g->kernel[1] % g->kernel[2],
                c = k0 / g->kernel[0] / g->kernel[1] / g->kernel[2];
        float *to = out + runs[r].lane;
        for (int64_t i = 0; i < k;) {
            const int64_t i1 = at[1] * g->stride[1] - g->pad[1] + y * g->dilation[1];
            const int64_t i2 = at[2] * g->stride[2] - g->pad[2] + z * g->dilation[2];
            const bool inside = i1 >= 0 && i1 < g->in[1] && i2 >= 0 && i2 < g->in[2];
            const char *line = b + c * g->in_channel + (inside ? i1 * g->in_step[1] + i2 * g->in_step[2] : 0);
            for (; x < g->kernel[0] && i < k; ++x, ++i, to += AGK_MM_UNIT) {
                put_lanes(to, runs[r].n, line, g->in_step[0], inside ? g->in[0] : 0,
                          at[0] * g->stride[0] - g->pad[0] + x * g->dilation[0], g->stride[0]);
            }
            x = 0;
            if (++y < g->kernel[1]) continue;
            y = 0;
            if (++z < g->kernel[2]) continue;
            z = 0;
            ++c;
        }
    }
}

/* The first step for f16 or strided weights: converts a row of the product to contiguous floats. */
static agk_status widen(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_conv g = agk_conv_of(node);
    const agk_view *a = &node->src[0];
    float *to = (float *)agk_work(task, node) + chunk * depth_of(&g);
    const char *from = (const char *)agk_data(task, a) + chunk * g.kernel_group;
    for (int64_t c = 0; c < g.channels; ++c) {
        for (int64_t z = 0; z < g.kernel[2]; ++z) {
            for (int64_t y = 0; y < g.kernel[1]; ++y, to += g.kernel[0]) {
                const char *line = from + c * g.kernel_channel + z * g.kernel_step[2] + y * g.kernel_step[1];
                agk_load_row(a->type, line, g.kernel_step[0], g.kernel[0], to);
            }
        }
    }
    return AGK_OK;
}

/* A unit: TILE places of one sample, for all channels of the result. Scratch: packed places, then the product. */
static agk_status run_product(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_conv g = agk_conv_of(node);
    const bool wide = node->aux.i[WIDE] != 0;
    const int64_t depth = depth_of(&g), places = g.out[0] * g.out[1] * g.out[2], tiles = node->aux.i[TILES];
    const char *a = wide ? agk_work(task, node) : agk_data(task, &node->src[0]), *b = agk_data(task, &node->src[1]);
    const size_t lda = wide ? (size_t)depth * sizeof(float) : (size_t)g.kernel_group;
    char *y = agk_data(task, &node->dst);
    float *packed = task->scratch, *product = packed + agk_mm_least(depth, DEPTH) * TILE;
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t n = unit / tiles, place = unit % tiles * TILE, cols = agk_mm_least(TILE, places - place);
        for (int64_t k0 = 0; k0 < depth; k0 += DEPTH) {
            const int64_t k = agk_mm_least(DEPTH, depth - k0);
            for (int64_t i = 0; i < cols; i += AGK_MM_UNIT) {
                pack_unit(&g, b + n * g.in_batch, place + i, agk_mm_least(AGK_MM_UNIT, cols - i), k0, k,
                          packed + i * k);
            }
            const agk_mm_block block = {.k = k,
                                        .rows = g.out_channels,
                                        .cols = cols,
                                        .a = a + 4 * k0,
                                        .lda = lda,
                                        .b = packed,
                                        .ldb = agk_mm_unit_bytes(AGK_MM_UNIT_FLOATS, k),
                                        .c = product,
                                        .ldc = (size_t)g.out_channels * sizeof(float),
                                        .add = k0 > 0};
            ((agk_mm_block_fn *)node->aux.fn[PRODUCT])(&block);
            agk_breathe(task);
        }
        ((agk_cpy_transpose_32_fn *)node->aux.fn[TRANSPOSE])(cols, g.out_channels, y + n * g.out_batch + 4 * place,
                                                             g.out_group, (const char *)product, 4 * g.out_channels);
    }
    return AGK_OK;
}

bool agk_lower_conv_product(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *dst = &node->dst;
    const agk_conv g = agk_conv_of(node);
    const int dims = node->op == AGK_OP_conv_3d ? 3 : 2;
    const int64_t depth = depth_of(&g), places = g.out[0] * g.out[1] * g.out[2];
    if (depth == 0 || !dense_image(dst, dims)) return false;
    const bool wide = a->type != AGK_F32 || !dense_image(a, dims) ||
                      (g.channels > 1 && g.kernel_channel != 4 * g.kernel[0] * g.kernel[1] * g.kernel[2]);
    node->aux.fn[PRODUCT] = (agk_any_fn *)AGK_PICK(mm_blocks_f32, lowering->cpu);
    node->aux.fn[TRANSPOSE] = (agk_any_fn *)AGK_PICK(cpy_transpose_32, lowering->cpu);
    node->aux.i[WIDE] = wide;
    node->aux.i[TILES] = agk_mm_ceil_div(places, TILE);
    lowering->scratch_size = (size_t)((agk_mm_least(depth, DEPTH) + g.out_channels) * TILE) * sizeof(float);
    if (wide) {
        lowering->work_size = (size_t)(g.out_channels * depth) * sizeof(float);
        agk_add_step(lowering, widen, g.out_channels);
    }
    const double ns = (double)(TILE * depth) * (0.1 + 0.01 * (double)g.out_channels) + 100.0;
    agk_add_units(lowering, run_product, node->aux.i[TILES] * g.batch, ns);
    return true;
}

/* -- transposed: a product for each place of the input, added up where its windows overlap ------------------------- */

typedef struct transposed {
    int64_t kernel[2], channels, out_channels; /* channels: those that are summed over */
    int64_t in[2], out[2], batch, stride;
    int64_t in_channel, in_batch, out_channel, out_batch; /* bytes */
    /* weights of one channel of the input; bytes to the next channel */
    int64_t weights, weight_channel;
} transposed;

static transposed transposed_of(const agk_node *node)
{
    const agk_view *a = &node->src[0], *b = &node->src[1], *y = &node->dst;
    const bool plane = node->op == AGK_OP_conv_transpose_2d;
    const int o = plane ? 2 : 1;
    transposed t = {.kernel = {a->ne[0], plane ? a->ne[1] : 1},
                    .channels = a->ne[o + 1],
                    .out_channels = a->ne[o],
                    .in = {b->ne[0], plane ? b->ne[1] : 1},
                    .out = {y->ne[0], plane ? y->ne[1] : 1},
                    .batch = plane ? b->ne[3] : 1,
                    .stride = node->params[0],
                    .in_channel = b->nb[o],
                    .in_batch = b->nb[3],
                    .out_channel = y->nb[o],
                    .out_batch = y->nb[3],
                    .weight_channel = a->nb[o + 1]};
    t.weights = t.kernel[0] * t.kernel[1] * t.out_channels;
    return t;
}

enum { TURNED = 64 }; /* weights that one chunk transposes */

/* The first step: transposes weights [input channel][output channel, window], so that a row holds those of all input
 * channels. */
static agk_status turn(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const transposed t = transposed_of(node);
    const agk_view *a = &node->src[0];
    const int64_t first = chunk * TURNED, n = agk_mm_least(TURNED, t.weights - first);
    float *to = (float *)agk_work(task, node) + first * t.channels;
    const char *from = (const char *)agk_data(task, a);
    for (int64_t c = 0; c < t.channels; ++c) {
        float line[TURNED];
        agk_load_row(a->type, from + c * t.weight_channel + first * a->nb[0], a->nb[0], n, line);
        for (int64_t i = 0; i < n; ++i) to[i * t.channels + c] = line[i];
    }
    return AGK_OK;
}

/* Rounds n floats to f16 and back. */
static void through_halves(const agk_node *node, float *x, int64_t n)
{
    uint16_t halves[AGK_BLOCK];
    for (int64_t i = 0; i < n; i += AGK_BLOCK) {
        const int64_t part = agk_mm_least(AGK_BLOCK, n - i);
        ((agk_from_float_fn *)node->aux.fn[WRITE])(x + i, halves, part);
        ((agk_to_float_fn *)node->aux.fn[READ])(halves, x + i, part);
    }
}

/* Packs 16 places of the input as [channel][16]. */
static void pack_places(const transposed *t, const char *x, int64_t n, float *out)
{
    for (int64_t c = 0; c < t->channels; ++c, out += AGK_MM_UNIT) {
        memset(out, 0, AGK_MM_UNIT * sizeof *out);
        memcpy(out, x + c * t->in_channel, (size_t)n * sizeof *out);
    }
}

/* Adds the products of some places, [place][output channel, window], to the planes of the result. */
static void spread(const transposed *t, const float *product, int64_t rows, int64_t place, int64_t n, int64_t channels,
                   char *y)
{
    const int64_t width = t->kernel[0];
    for (int64_t p = 0; p < n; ++p, product += rows) {
        const int64_t i0 = (place + p) % t->in[0] * t->stride, i1 = (place + p) / t->in[0] * t->stride;
        const float *from = product;
        for (int64_t c = 0; c < channels; ++c) {
            float *to = (float *)(void *)(y + c * t->out_channel) + i1 * t->out[0] + i0;
            for (int64_t k1 = 0; k1 < t->kernel[1]; ++k1, to += t->out[0], from += width) {
                if (width == 2) { /* calling the vector loop costs more than two sums */
                    to[0] += from[0];
                    to[1] += from[1];
                    continue;
                }
                for (int64_t k0 = 0; k0 < width; ++k0) to[k0] += from[k0];
            }
        }
    }
}

/* A unit: some channels of the result of one sample, for all places. */
static agk_status run_transposed_product(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const transposed t = transposed_of(node);
    const bool half = node->src[0].type == AGK_F16;
    const int64_t window = t.kernel[0] * t.kernel[1], places = t.in[0] * t.in[1], block = node->aux.i[CHANNELS];
    const int64_t blocks = node->aux.i[BLOCKS];
    const float *weights = agk_work(task, node);
    float *packed = task->scratch, *product = packed + t.channels * TILE;
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t n = unit / blocks, first = unit % blocks * block;
        const int64_t channels = agk_mm_least(block, t.out_channels - first), rows = channels * window;
        const char *x = (const char *)agk_data(task, &node->src[1]) + n * t.in_batch;
        char *y = (char *)agk_data(task, &node->dst) + n * t.out_batch + first * t.out_channel;
        for (int64_t c = 0; c < channels; ++c) {
            memset(y + c * t.out_channel, 0, (size_t)(t.out[0] * t.out[1]) * sizeof(float));
        }
        for (int64_t place = 0; place < places; place += TILE) {
            const int64_t cols = agk_mm_least(TILE, places - place);
            for (int64_t i = 0; i < cols; i += AGK_MM_UNIT) {
                pack_places(&t, x + 4 * (place + i), agk_mm_least(AGK_MM_UNIT, cols - i), packed + i * t.channels);
            }
            /* Rounded to f16 if the weights are f16, as in ggml. */
            if (half) through_halves(node, packed, (cols + AGK_MM_UNIT - 1) / AGK_MM_UNIT * AGK_MM_UNIT * t.channels);
            const agk_mm_block b = {.k = t.channels,
                                    .rows = rows,
                                    .cols = cols,
                                    .a = weights + first * window * t.channels,
                                    .lda = (size_t)t.channels * sizeof(float),
                                    .b = packed,
                                    .ldb = agk_mm_unit_bytes(AGK_MM_UNIT_FLOATS, t.channels),
                                    .c = product,
                                    .ldc = (size_t)rows * sizeof(float)};
            ((agk_mm_block_fn *)node->aux.fn[PRODUCT])(&b);
            spread(&t, product, rows, place, cols, channels, y);
            agk_breathe(task);
        }
    }
    return AGK_OK;
}

bool agk_lower_conv_transpose(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *b = &node->src[1], *dst = &node->dst;
    const bool plane = node->op == AGK_OP_conv_transpose_2d;
    const int64_t size = (int64_t)agk_traits(a->type)->type_size;
    const transposed t = transposed_of(node);
    int64_t expected =
        /* the weights of an input channel, over output channels and windows, have no gaps, so that they are one row */
        size;
    for (int d = 0; d <= (plane ? 2 : 1); ++d) {
        if (a->ne[d] > 1 && a->nb[d] != expected) return false;
        expected *= a->ne[d];
    }
    if (t.channels == 0 || t.weights == 0 || a->nb[0] != size || !dense_image(b, plane ? 2 : 1) ||
        !dense_image(dst, plane ? 2 : 1)) {
        return false;
    }
    const int64_t window = t.kernel[0] * t.kernel[1], block = (LEAST_ROWS + window - 1) / window;
    node->aux.fn[PRODUCT] = (agk_any_fn *)AGK_PICK(mm_blocks_f32, lowering->cpu);
    node->aux.fn[READ] = (agk_any_fn *)agk_reader(AGK_F16, lowering->cpu);
    node->aux.fn[WRITE] = (agk_any_fn *)agk_writer(AGK_F16, lowering->cpu);
    node->aux.i[CHANNELS] = block;
    node->aux.i[BLOCKS] = agk_mm_ceil_div(t.out_channels, block);
    lowering->scratch_size = (size_t)((t.channels + block * window) * TILE) * sizeof(float);
    lowering->work_size = (size_t)(t.weights * t.channels) * sizeof(float);
    agk_add_step(lowering, turn, agk_mm_ceil_div(t.weights, TURNED));
    const double ns = (double)(t.in[0] * t.in[1]) * (double)(block * window) * (1.0 + 0.02 * (double)t.channels);
    agk_add_units(lowering, run_transposed_product, node->aux.i[BLOCKS] * t.batch, ns);
    return true;
}
