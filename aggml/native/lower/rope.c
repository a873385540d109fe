/* rope: rotates pairs of each row by an angle that grows with the position (Su et al., 2021): normal and neox pairing,
 * YaRN, frequency factors, several positions together (mrope, imrope, vision), f32 and f16. rope_back rotates back.
 *
 * Here: the lowering, the frequencies. Not here: the kernels (rope.c of each folder of kernels/). */
#include <math.h>

#include "table/kernel_types.h"
#include "units.h"

/* params */
enum {
    N_DIMS = 1,
    MODE = 2,
    N_CTX_ORIG = 4,
    FREQ_BASE,
    FREQ_SCALE,
    EXT_FACTOR,
    ATTN_FACTOR,
    BETA_FAST,
    BETA_SLOW,
    SECTIONS, /* four of them: how many pairs rotate with each of four positions */
    OFFSET = 15
};
enum { NEOX = 2, MROPE = 8, VISION = 24, IMROPE = 40 };
/* slots of node->aux */
enum { TABLE, ROTATE, READ, WRITE, LOW, HIGH, MAGNITUDE };

static bool is_multi(const agk_node *node)
{
    return (node->params[MODE] & MROPE) != 0;
}

/* Elements of a row that are rotated: in vision mode twice n_dims. */
static int64_t n_rotated(const agk_node *node)
{
    return node->params[MODE] == VISION ? 2 * (int64_t)node->params[N_DIMS] : node->params[N_DIMS];
}

/* Which of the four positions (time, height, width, extra) pair i rotates with. The sections follow each other and
 * then repeat; imrope assigns pairs to positions in groups of three. */
static int position_of(const agk_node *node, int64_t i)
{
    const int32_t *s = &node->params[SECTIONS];
    const int64_t place = i % ((int64_t)s[0] + s[1] + s[2] + s[3]);
    if (node->params[MODE] == IMROPE) {
        const int64_t third = place % 3;
        return place < 3 * (int64_t)s[third] ? (int)third : 3;
    }
    if (place < s[0]) return 0;
    if (place < (int64_t)s[0] + s[1]) return 1;
    return place < (int64_t)s[0] + s[1] + s[2] ? 2 : 3;
}

static bool begins_section(const agk_node *node, int64_t i)
{
    const int32_t *s = &node->params[SECTIONS];
    const int64_t place = i % ((int64_t)s[0] + s[1] + s[2] + s[3]);
    return place == 0 || place == s[0] || place == (int64_t)s[0] + s[1] || place == (int64_t)s[0] + s[1] + s[2];
}

/* Radians per position of each pair: base^(-2i/n), divided by its factor. YaRN blends this with the scaled value. In
 * vision mode the frequencies of every section begin at 1 again. */
static void frequencies(const agk_node *node, const char *factors, double *freq)
{
    const int64_t half = n_rotated(node) / 2;
    const double step = pow((double)agk_param_f32(node, FREQ_BASE), -2.0 / (double)node->params[N_DIMS]);
    const double scale = (double)agk_param_f32(node, FREQ_SCALE), mix = (double)agk_param_f32(node, EXT_FACTOR);
    const double low = node->aux.f[LOW], high = node->aux.f[HIGH];
    double value = 1.0;
    for (int64_t i = 0; i < half; ++i, value *= step) {
        float factor = 1.0f;
        if (node->params[MODE] == VISION && i > 0 && begins_section(node, i)) value = 1.0;
        if (factors != NULL) memcpy(&factor, factors + i * node->src[2].nb[0], sizeof factor);
        const double ramp = ((double)i - low) / fmax(0.001, high - low);
        const double kept = mix * (1.0 - fmin(1.0, fmax(0.0, ramp)));
        freq[i] = value / (double)factor * (scale * (1.0 - kept) + kept);
    }
}

typedef struct rows {
    const agk_node *node;
    agk_port y, x;
    const float *cosine, *sine;
    float *in, *out; /* one row each, if the type is not f32 */
} rows;

static void run_row(const rows *r, int64_t y_at, int64_t x_at)
{
    const agk_node *node = r->node;
    const int64_t n = node->dst.ne[0], n_dims = n_rotated(node), offset = node->params[OFFSET];
    const bool converts = !r->x.direct;
    char *y = r->y.data + y_at;
    const char *x = r->x.data + x_at;
    if (y != x) {
        memcpy(y, x, (size_t)(offset * r->x.size));
        memcpy(y + (offset + n_dims) * r->x.size, x + (offset + n_dims) * r->x.size,
               (size_t)((n - offset - n_dims) * r->x.size));
    }
    y += offset * r->y.size;
    x += offset * r->x.size;
    if (converts) r->x.read(x, r->in, n_dims);
    const float *from = converts ? r->in : (const float *)(const void *)x;
    float *to = converts ? r->out : (float *)(void *)y;
    ((agk_rope_rotate_fn *)node->aux.fn[ROTATE])(node->params[MODE] != 0, n_dims / 2, to, from, r->cosine, r->sine);
    if (converts) r->y.write(r->out, y, n_dims);
}

/* Cosines and sines of the pairs at the positions of index i2. `angles` has room for a double for each pair. */
static void make_table(const agk_node *node, const char *positions, int64_t i2, const double *freq, double *angles,
                       float *plain)
{
    agk_rope_table_fn *table = (agk_rope_table_fn *)node->aux.fn[TABLE];
    const agk_view *a = &node->src[0];
    const int64_t half = n_rotated(node) / 2, step = node->src[1].nb[0];
    const float magnitude = (float)node->aux.f[MAGNITUDE];
    int32_t at[4] = {0};
    for (int k = 0; k < (is_multi(node) ? 4 : 1); ++k)
        memcpy(&at[k], positions + (i2 + k * a->ne[2]) * step, sizeof *at);
    if (is_multi(node)) {
        for (int64_t i = 0; i < half; ++i) angles[i] = (double)at[position_of(node, i)] * freq[i];
        table(half, 1.0, angles, magnitude, plain, plain + half);
    } else {
        table(half, (double)at[0], freq, magnitude, plain, plain + half);
    }
    for (int64_t i = 0; node->op == AGK_OP_rope_back && i < half; ++i) plain[half + i] = -plain[half + i];
}

/* Scratch: frequencies as double [half], angles likewise, table [2 n_dims], plain cosines and sines [n_dims], two rows
 * [n_dims]. */
static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *dst = &node->dst, *a = &node->src[0];
    const int64_t n_dims = n_rotated(node), half = n_dims / 2;
    double *freq = task->scratch, *angles = freq + half;
    float *table = (float *)(void *)(angles + half), *plain = table + 2 * n_dims;
    const bool neox = node->params[MODE] != 0;
    const char *positions = agk_data(task, &node->src[1]);
    rows r = {.node = node,
              .y = agk_port_of(agk_data(task, dst), dst->type, (int64_t)agk_traits(dst->type)->type_size),
              .x = agk_port_of(agk_data(task, a), a->type, (int64_t)agk_traits(a->type)->type_size),
              .cosine = neox ? plain : table,
              .sine = neox ? plain + half : table + n_dims,
              .in = plain + n_dims,
              .out = plain + 2 * n_dims};
    r.x.read = (agk_to_float_fn *)node->aux.fn[READ];
    r.y.write = (agk_from_float_fn *)node->aux.fn[WRITE];
    frequencies(node, agk_has(node, 2) ? agk_data(task, &node->src[2]) : NULL, freq);
    const agk_range units = agk_units_of(node, chunk);
    for (int64_t unit = units.first; unit < units.last; ++unit) {
        const int64_t i2 = unit % a->ne[2], i3 = unit / a->ne[2];
        make_table(node, positions, i2, freq, angles, plain);
        for (int64_t i = 0; !neox && i < half; ++i) {
            table[2 * i] = table[2 * i + 1] = plain[i];
            table[n_dims + 2 * i] = -plain[half + i];
            table[n_dims + 2 * i + 1] = plain[half + i];
        }
        for (int64_t i1 = 0; i1 < a->ne[1]; ++i1) {
            run_row(&r, i1 * dst->nb[1] + i2 * dst->nb[2] + i3 * dst->nb[3],
                    i1 * a->nb[1] + i2 * a->nb[2] + i3 * a->nb[3]);
        }
    }
    return AGK_OK;
}

/* The pair that makes `turns` rotations over the context that a model was trained with (YaRN, Peng et al., 2023). */
static double pair_of_turns(const agk_node *node, float turns)
{
    const double base = (double)agk_param_f32(node, FREQ_BASE), n_ctx = (double)node->params[N_CTX_ORIG];
    return (double)node->params[N_DIMS] * log(n_ctx / ((double)turns * 2.0 * 3.14159265358979323846)) /
           (2.0 * log(base));
}

static void blend(agk_node *node)
{
    const float scale = agk_param_f32(node, FREQ_SCALE);
    node->aux.f[MAGNITUDE] = (double)agk_param_f32(node, ATTN_FACTOR);
    node->aux.f[LOW] = node->aux.f[HIGH] = 0.0;
    if (!(fabsf(agk_param_f32(node, EXT_FACTOR)) > 0.0f)) return;
    node->aux.f[LOW] = fmax(0.0, floor(pair_of_turns(node, agk_param_f32(node, BETA_FAST))));
    node->aux.f[HIGH] =
        fmin((double)node->params[N_DIMS] - 1.0, ceil(pair_of_turns(node, agk_param_f32(node, BETA_SLOW))));
    node->aux.f[MAGNITUDE] *= 1.0 + 0.1 * log(1.0 / (double)scale);
}

static agk_status check(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *a = &node->src[0], *b = &node->src[1], *c = &node->src[2];
    const int64_t n_dims = n_rotated(node), offset = node->params[OFFSET];
    const agk_status status = agk_expect_like(lowering, dst, a);
    if (status != AGK_OK) return status;
    if (a->type != AGK_F32 && a->type != AGK_F16) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s, not f32 or f16", agk_type_name(a->type));
    }
    const int64_t size = (int64_t)agk_traits(a->type)->type_size;
    if (a->ne[0] > 1 && (a->nb[0] != size || dst->nb[0] != size)) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "the elements of a row are %lld bytes apart, not %lld",
                          (long long)(a->nb[0] != size ? a->nb[0] : dst->nb[0]), (long long)size);
    }
    const int mode = node->params[MODE];
    if (mode != 0 && mode != NEOX && mode != MROPE && mode != VISION && mode != IMROPE) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "there is no mode %d", mode);
    }
    int64_t sections = 0;
    for (int k = 0; is_multi(node) && k < 4; ++k) {
        if (node->params[SECTIONS + k] < 0) return agk_refuse(lowering, AGK_INVALID, "a section is negative");
        sections += node->params[SECTIONS + k];
    }
    if (is_multi(node) && sections == 0) return agk_refuse(lowering, AGK_INVALID, "all sections are 0");
    if (n_dims < 0 || n_dims % 2 != 0 || offset < 0 || offset + n_dims > a->ne[0]) {
        return agk_refuse(lowering, AGK_INVALID,
                          "n_dims is %lld, from element %lld on: must be even and fit into rows of %lld",
                          (long long)n_dims, (long long)offset, (long long)a->ne[0]);
    }
    const int64_t n_positions = is_multi(node) ? 4 * a->ne[2] : a->ne[2];
    if (b->type != AGK_I32 || b->ne[0] != n_positions || agk_nelements(b) != n_positions) {
        return agk_refuse(lowering, AGK_INVALID, "b has %lld positions of %s; expected i32 and %lld",
                          (long long)agk_nelements(b), agk_type_name(b->type), (long long)n_positions);
    }
    if (agk_has(node, 2) && (c->type != AGK_F32 || c->ne[0] < n_dims / 2 || agk_nelements(c) == 0)) {
        return agk_refuse(lowering, AGK_INVALID,
                          "c has %lld frequency factors of %s; expected f32 and one for each of %lld pairs",
                          (long long)c->ne[0], agk_type_name(c->type), (long long)(n_dims / 2));
    }
    return AGK_OK;
}

agk_status agk_lower_rope(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *a = &node->src[0];
    const agk_status status = check(lowering);
    if (status != AGK_OK || agk_nelements(a) == 0) return status;
    const int64_t n_dims = n_rotated(node), units = a->ne[2] * a->ne[3];
    blend(node);
    node->aux.fn[TABLE] = (agk_any_fn *)AGK_PICK(rope_table, lowering->cpu);
    node->aux.fn[ROTATE] = (agk_any_fn *)AGK_PICK(rope_rotate, lowering->cpu);
    node->aux.fn[READ] = (agk_any_fn *)agk_reader(a->type, lowering->cpu);
    node->aux.fn[WRITE] = (agk_any_fn *)agk_writer(a->type, lowering->cpu);
    const bool plain = AGK_IS_PLAIN(rope_table, node->aux.fn[TABLE]);
    const double table_ns = (plain ? 25.0 : 1.5) * (double)n_dims,
                 row_ns = 10.0 + (plain ? 1.0 : 0.2) * (double)a->ne[0];
    lowering->scratch_size = (size_t)n_dims * sizeof(double) + (size_t)(5 * n_dims) * sizeof(float);
    agk_add_units(lowering, run, units, table_ns + row_ns * (double)a->ne[1]);
    return AGK_OK;
}
