/* Operations on elements and rows (functions, norms, soft_max, rope, attention, copies) for each set of features:
 * nodes.h. Functions also at special numbers. */
#include "kernels/mul_mat.h"
#include "nodes.h"

enum { MOST = 5000 };

static void set_param(agk_node *node, int i, float value)
{
    memcpy(&node->params[i], &value, sizeof value);
}

static agk_node of_rows(int op, float *x, int64_t n, int64_t rows)
{
    agk_node node = {.op = op, .n_src = 1};
    node.src[0] = view_of(AGK_F32, x, n, rows, 1);
    node.dst = view_of(AGK_F32, NULL, n, rows, 1);
    return node;
}

static const int64_t lengths[] = {1, 3, 4, 7, 16, 67, 1030};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

/* Each variant of unary_f32 at special numbers: infinite and NaN results are the same in all variants. */
static void special(void)
{
    static const float x[] = {0.0f,   -0.0f,      INFINITY, -INFINITY, NAN,     1e-40f, -1e-40f, 3e38f,
                              -3e38f, 88.8f,      -88.8f,   104.0f,    -104.0f, 0.5f,   -0.5f,   1.5f,
                              -2.5f,  8388609.0f, -0.49f,   6.6f,      -6.6f,   12.0f,  -12.0f};
    enum { N = sizeof x / sizeof *x };
    for (size_t i = 0; i < agk_n_variants; ++i) {
        const agk_variant *v = &agk_variants[i];
        if (strcmp(v->kernel, "unary_f32") != 0 || (v->needs & ~agk_cpu_features()) != 0) continue;
        for (int op = 0; op < AGK_OP_COUNT; ++op) {
            if (agk_ops[op].stage != AGK_STAGE_UNARY) continue;
            float expected[N], found[N];
            agk_unary_f32_scalar(op, N, expected, x);
            ((agk_unary_f32_fn *)v->fn)(op, N, found, x);
            for (int j = 0; j < N; ++j) {
                const float size = fabsf(expected[j]);
                const bool same = isnan(expected[j]) ? isnan(found[j])
                                  : isinf(expected[j])
                                      ? isinf(found[j]) && (found[j] > 0.0f) == (expected[j] > 0.0f)
                                      : fabsf(found[j] - expected[j]) <= 2e-6f * fmaxf(size, fabsf(x[j]));
                if (!same && !(isinf(x[j]) || isnan(x[j]))) {
                    fprintf(stderr, "%s %s of %g: %g, not %g\n", v->isa, agk_op_name(op), (double)x[j],
                            (double)found[j], (double)expected[j]);
                    exit(1);
                }
            }
        }
    }
}

/* Each variant of unary_f32: a number has the same result, bit for bit, beside small numbers, beside a large one, and
 * alone. Vectors whose numbers are all near 0 have a shorter formula. */
static void beside_others(rng *r)
{
    enum { N = 64 };
    for (size_t i = 0; i < agk_n_variants; ++i) {
        const agk_variant *v = &agk_variants[i];
        if (strcmp(v->kernel, "unary_f32") != 0 || (v->needs & ~agk_cpu_features()) != 0) continue;
        agk_unary_f32_fn *compute = (agk_unary_f32_fn *)v->fn;
        for (int op = 0; op < AGK_OP_COUNT; ++op) {
            if (agk_ops[op].stage != AGK_STAGE_UNARY || op == AGK_OP_sin || op == AGK_OP_cos) continue;
            float *x = floats(r, N), near[N], far[N], alone;
            for (int j = 0; j < N; ++j) x[j] *= 9.0f;
            x[N - 1] = -9.875f;
            compute(op, N, near, x);
            for (int j = 0; j < N - 1; j += 8) x[j] = j % 16 == 0 ? 300.0f : -INFINITY;
            compute(op, N, far, x);
            for (int j = 0; j < N; ++j) {
                compute(op, 1, &alone, x + j);
                const bool same = memcmp(far + j, &alone, sizeof alone) == 0 || (isnan(far[j]) && isnan(alone));
                if (same && (j % 8 == 0 || memcmp(far + j, near + j, sizeof alone) == 0 || isnan(far[j]))) continue;
                fprintf(stderr, "%s %s of %g: %a, %a, %a\n", v->isa, agk_op_name(op), (double)x[j], (double)near[j],
                        (double)far[j], (double)alone);
                exit(1);
            }
            free(x);
        }
    }
}

static void elements(rng *r)
{
    for (int i = 0; i < N_LENGTHS; ++i) {
        const int64_t n = lengths[i], rows = 3;
        float *x = floats(r, (size_t)(n * rows)), *y = floats(r, (size_t)(n * rows));
        for (int64_t j = 0; j < n * rows; ++j) y[j] = fabsf(y[j]) + 0.1f;
        for (int op = 0; op < AGK_OP_COUNT; ++op) {
            if (agk_ops[op].stage != AGK_STAGE_UNARY) continue;
            for (int64_t j = 0; j < n * rows; ++j) x[j] = op == AGK_OP_sqrt || op == AGK_OP_log ? y[j] : x[j] * 8.0f;
            agk_node node = of_rows(op, x, n, rows);
            compare(&node, false, 2e-6);
            /* for sqrt and log x is now y / 8, which serves as well */
            for (int64_t j = 0; j < n * rows; ++j) x[j] /= 8.0f;
        }
        static const int two[] = {AGK_OP_add,       AGK_OP_sub,         AGK_OP_mul,       AGK_OP_div,
                                  AGK_OP_reglu,     AGK_OP_geglu,       AGK_OP_swiglu,    AGK_OP_swiglu_oai,
                                  AGK_OP_geglu_erf, AGK_OP_geglu_quick, AGK_OP_silu_back, AGK_OP_swiglu_clamp};
        for (size_t f = 0; f < sizeof two / sizeof *two; ++f) {
            agk_node node = of_rows(two[f], x, n, rows);
            node.n_src = 2;
            node.src[1] = view_of(AGK_F32, y, n, rows, 1);
            set_param(&node, 2, 1.702f);
            set_param(&node, 3, 7.0f);
            compare(&node, false, 2e-6);
            if (f >= 4) continue;
            node.src[1] = view_of(AGK_F32, y, 1, rows, 1);
            compare(&node, false, 0.0);
        }
        agk_node scale = of_rows(AGK_OP_scale, x, n, rows);
        set_param(&scale, 0, 0.7f);
        set_param(&scale, 1, 0.3f);
        compare(&scale, false, 0.0);
        free(x);
        free(y);
    }
}

/* Operations on whole rows; also functions with parameters. */
static void gradients(rng *r, float *x, int64_t n, int64_t rows)
{
    static const int two[] = {AGK_OP_rms_norm_back, AGK_OP_soft_max_back, AGK_OP_cross_entropy_loss};
    static const int one[] = {AGK_OP_clamp, AGK_OP_leaky_relu, AGK_OP_xielu};
    float *y = floats(r, (size_t)(n * rows)), grad = 0.7f;
    for (size_t f = 0; f < sizeof two / sizeof *two; ++f) {
        agk_node node = of_rows(two[f], x, n, rows);
        node.n_src = 2;
        node.src[1] = view_of(AGK_F32, y, n, rows, 1);
        if (two[f] == AGK_OP_cross_entropy_loss) node.dst = view_of(AGK_F32, NULL, 1, 1, 1);
        set_param(&node, 0, two[f] == AGK_OP_soft_max_back ? 0.5f : 1e-5f);
        compare(&node, false, 4e-6);
    }
    agk_node back = of_rows(AGK_OP_cross_entropy_loss_back, &grad, n, rows);
    back.n_src = 3;
    back.src[0] = view_of(AGK_F32, &grad, 1, 1, 1);
    back.src[1] = view_of(AGK_F32, x, n, rows, 1);
    back.src[2] = view_of(AGK_F32, y, n, rows, 1);
    compare(&back, false, 4e-6);
    for (size_t f = 0; f < sizeof one / sizeof *one; ++f) {
        static const float params[5] = {-0.5f, 0.8f, 0.7f, 0.5f, -1e-6f};
        agk_node node = of_rows(one[f], x, n, rows);
        for (int i = 0; i < 5; ++i) set_param(&node, i, params[i]);
        compare(&node, false, 2e-6);
    }
    free(y);
}

/* Two heads of width d, three tokens, one sequence. */
static void recurrences(rng *r)
{
    enum { HEADS = 2, TOKENS = 3 };
    static const int ops[] = {AGK_OP_rwkv_wkv6, AGK_OP_rwkv_wkv7, AGK_OP_gated_linear_attn, AGK_OP_gated_delta_net};
    static const int operands[] = {5, 6, 4, 5};
    static const int64_t widths[] = {1, 5, 16, 64, 70};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; ++w) {
        const int64_t d = widths[w];
        float *x[6], *state = floats(r, (size_t)(d * d) * HEADS);
        for (int i = 0; i < 6; ++i) x[i] = floats(r, (size_t)d * HEADS * TOKENS);
        for (size_t f = 0; f < sizeof ops / sizeof *ops; ++f) {
            const bool delta = ops[f] == AGK_OP_gated_delta_net;
            agk_node node = {.op = ops[f], .n_src = operands[f] + 1};
            for (int i = 0; i < operands[f]; ++i) node.src[i] = view_of(AGK_F32, x[i], d, HEADS, TOKENS);
            if (ops[f] == AGK_OP_rwkv_wkv6) node.src[3] = view_of(AGK_F32, x[3], d, HEADS, 1);
            if (delta) {
                node.src[3] = view_of(AGK_F32, x[3], w % 2 == 0 ? d : 1, HEADS, TOKENS);
                node.src[4] = view_of(AGK_F32, x[4], 1, HEADS, TOKENS);
                node.params[0] = 1;
            } else {
                set_param(&node, 0, 0.5f);
            }
            node.src[operands[f]] =
                delta ? view_of(AGK_F32, state, d, d, HEADS) : view_of(AGK_F32, state, d * d * HEADS, 1, 1);
            node.dst = view_of(AGK_F32, NULL, d * HEADS, TOKENS + d, 1);
            compare(&node, false, 1e-5);
        }
        for (int i = 0; i < 6; ++i) free(x[i]);
        free(state);
    }
}

static void rows_of_numbers(rng *r)
{
    static const int norms[] = {AGK_OP_norm, AGK_OP_rms_norm, AGK_OP_l2_norm};
    for (int i = 0; i < N_LENGTHS; ++i) {
        const int64_t n = lengths[i], rows = 5;
        float *x = floats(r, (size_t)(n * rows));
        for (int64_t j = 0; j < n * rows; ++j) x[j] = 3.0f * x[j] + 0.1f;
        for (size_t f = 0; f < sizeof norms / sizeof *norms; ++f) {
            agk_node node = of_rows(norms[f], x, n, rows);
            set_param(&node, 0, 1e-5f);
            if (n > 1 || f > 0) compare(&node, false, 2e-6);
        }
        agk_node group = of_rows(AGK_OP_group_norm, x, n, rows);
        group.params[0] = 1;
        set_param(&group, 1, 1e-5f);
        if (n > 1) compare(&group, false, 2e-6);
        gradients(r, x, n, rows);
        uint16_t *mask = halves(r, AGK_F16, (size_t)(n * rows));
        for (int64_t j = 2; j < n * rows; j += 3) mask[j] = 0xfc00; /* -inf */
        agk_node node = of_rows(AGK_OP_soft_max, x, n, rows);
        set_param(&node, 0, 0.5f);
        compare(&node, false, 2e-6);
        node.n_src = 2;
        node.src[1] = view_of(AGK_F16, mask, n, rows, 1);
        if (n > 3) compare(&node, false, 2e-6);
        float *wide = filled((size_t)(n * rows) * 4);
        agk_traits(AGK_F16)->to_float(mask, wide, n * rows);
        node.src[1] = view_of(AGK_F32, wide, n, rows, 1);
        if (n > 3) compare(&node, false, 2e-6);
        free(wide);
        free(mask);
        free(x);
    }
}

static void rotations(rng *r)
{
    enum { HEADS = 3, TOKENS = 4 };
    static const int64_t dims[] = {2, 6, 32, 90, 128};
    int32_t positions[TOKENS] = {0, 1, 77, 100003};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; ++i) {
        for (int neox = 0; neox < 2; ++neox) {
            float *x = floats(r, (size_t)dims[i] * HEADS * TOKENS);
            agk_node node = {.op = AGK_OP_rope, .n_src = 2};
            node.src[0] = view_of(AGK_F32, x, dims[i], HEADS, TOKENS);
            node.src[1] = view_of(AGK_I32, positions, TOKENS, 1, 1);
            node.dst = view_of(AGK_F32, NULL, dims[i], HEADS, TOKENS);
            node.params[1] = (int32_t)dims[i];
            node.params[2] = neox ? 2 : 0;
            set_param(&node, 5, 10000.0f);
            set_param(&node, 6, 1.0f);
            set_param(&node, 8, 1.0f);
            compare(&node, false, 1e-6);
            free(x);
        }
    }
}

static void attention(rng *r, int type, int64_t d, int64_t n, int64_t keys, bool mask, bool cap)
{
    enum { HEADS = 4, KV_HEADS = 2 };
    float *q = floats(r, (size_t)(d * n) * HEADS);
    void *k =
        type == AGK_F32 ? floats(r, (size_t)(d * keys) * KV_HEADS) : halves(r, type, (size_t)(d * keys) * KV_HEADS);
    void *v =
        type == AGK_F32 ? floats(r, (size_t)(d * keys) * KV_HEADS) : halves(r, type, (size_t)(d * keys) * KV_HEADS);
    uint16_t *m = halves(r, AGK_F16, (size_t)(keys * n));
    for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < keys; ++j) {
            if (j > i + keys - n) m[i * keys + j] = 0xfc00;
        }
    }
    agk_node node = {.op = AGK_OP_flash_attn_ext, .n_src = mask ? 4 : 3};
    node.src[0] = view_of(AGK_F32, q, d, n, HEADS);
    node.src[1] = view_of(type, k, d, keys, KV_HEADS);
    node.src[2] = view_of(type, v, d, keys, KV_HEADS);
    node.src[3] = view_of(AGK_F16, m, keys, n, 1);
    node.dst = view_of(AGK_F32, NULL, d, HEADS, n);
    set_param(&node, 0, 1.0f / sqrtf((float)d));
    if (cap) set_param(&node, 2, 20.0f);
    /* a machine with fast bf16 multiplies bf16 operands in bf16 */
    compare(&node, false, type == AGK_BF16 && (agk_cpu_features() & (AGK_FAST_BF16 | AGK_AMX_BF16)) != 0 ? 1e-2 : 2e-5);
    free(q);
    free(k);
    free(v);
    free(m);
}

static void attentions(rng *r)
{
    static const int types[] = {AGK_F32, AGK_F16, AGK_BF16};
    for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
        attention(r, types[i], 64, 1, 130, true, false);
        attention(r, types[i], 40, 3, 33, true, true);
        attention(r, types[i], 33, 5, 7, false, false);
        attention(r, types[i], 64, 45, 90, true, false);
        attention(r, types[i], 22, 70, 75, true, true);
        attention(r, types[i], 128, 33, 140, false, false);
    }
}

/* Transposed copies, to other types and back: bit for bit. */
static void copies(rng *r)
{
    static const int types[] = {AGK_F32, AGK_F16, AGK_BF16};
    enum { N = 37, M = 50 };
    for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
        for (int transposed = 0; transposed < 2; ++transposed) {
            void *x = types[i] == AGK_F32 ? floats(r, N * M) : halves(r, types[i], N * M);
            agk_node node = {.op = AGK_OP_cont, .n_src = 1};
            node.src[0] = view_of(types[i], x, N, M, 1);
            if (transposed) {
                node.src[0].ne[0] = M, node.src[0].ne[1] = N;
                const int64_t step = node.src[0].nb[0];
                node.src[0].nb[0] = node.src[0].nb[1], node.src[0].nb[1] = step;
            }
            node.dst = view_of(AGK_F32, NULL, node.src[0].ne[0], node.src[0].ne[1], 1);
            compare(&node, false, 0.0);
            free(x);
        }
    }
}

/* Each variant of the kernels that transpose matrices and convert rows: bit for bit. */
static void moves(rng *r)
{
    enum { N = 29, M = 43 };
    for (size_t i = 0; i < agk_n_variants; ++i) {
        const agk_variant *v = &agk_variants[i];
        if ((v->needs & ~agk_cpu_features()) != 0) continue;
        const int width = strcmp(v->kernel, "cpy_transpose_32") == 0   ? 4
                          : strcmp(v->kernel, "cpy_transpose_16") == 0 ? 2
                                                                       : 0;
        if (width != 0) {
            char *x = (char *)floats(r, N * M), *found = filled(N * M * 4);
            ((agk_cpy_transpose_32_fn *)v->fn)(N, M, found, N * width, x, M * width);
            for (int a = 0; a < N; ++a) {
                for (int b = 0; b < M; ++b)
                    CHECK(memcmp(found + (b * N + a) * width, x + (a * M + b) * width, (size_t)width) == 0);
            }
            free(x);
            free(found);
        }
        const bool to_f16 = strcmp(v->kernel, "f32_to_f16") == 0, to_bf16 = strcmp(v->kernel, "f32_to_bf16") == 0;
        if (to_f16 || to_bf16) {
            float *x = floats(r, MOST);
            for (int j = 0; j < MOST; ++j) {
                uint32_t bits = rng_next(r);
                if (j % 2 == 0) memcpy(&x[j], &bits, sizeof bits);
                if (to_f16 && isnan(x[j])) x[j] = 1.0f; /* no NaN: variants differ in the bits they keep of it */
            }
            uint16_t *expected = filled(MOST * 2), *found = filled(MOST * 2);
            for (int n = MOST - 9; n <= MOST; ++n) {
                (to_f16 ? agk_f32_to_f16_scalar : agk_f32_to_bf16_scalar)(x, expected, n);
                ((agk_f32_to_f16_fn *)v->fn)(x, found, n);
                CHECK(memcmp(expected, found, (size_t)n * 2) == 0);
            }
            free(x);
            free(expected);
            free(found);
        }
        const bool col = strcmp(v->kernel, "mm_columns_q8") == 0, wide = strcmp(v->kernel, "mm_columns_q8_wide") == 0;
        if (col || wide) {
            enum { K = 2048 };
            float *x = floats(r, K);
            for (int j = 0; j < K; j += 97) x[j] = j % 2 == 0 ? INFINITY : NAN;
            agk_mm_col_q8 *expected = filled(K / 64 * sizeof *expected), *found = filled(K / 64 * sizeof *found);
            for (int n = wide ? K : K - 32; n <= K; n += 32) {
                (wide ? agk_mm_columns_q8_wide_scalar : agk_mm_columns_q8_scalar)(x, expected, n);
                ((agk_mm_columns_q8_fn *)v->fn)(x, found, n);
                for (int j = 0; j < (n + 63) / 64; ++j) {
                    CHECK(memcmp(expected[j].q, found[j].q, sizeof found[j].q) == 0);
                    CHECK(memcmp(expected[j].d, found[j].d, sizeof found[j].d) == 0);
                    int sums[2][2] = {{0}};
                    for (int e = 0; e < 16; ++e)
                        sums[0][e / 8] += expected[j].start[e], sums[1][e / 8] += found[j].start[e];
                    CHECK(memcmp(sums[0], sums[1], sizeof sums[0]) == 0);
                }
            }
            free(x);
            free(expected);
            free(found);
        }
    }
}

int main(void)
{
    rng r = rng_new(0);
    special();
    beside_others(&r);
    moves(&r);
    elements(&r);
    rows_of_numbers(&r);
    recurrences(&r);
    rotations(&r);
    attentions(&r);
    copies(&r);
    return 0;
}
