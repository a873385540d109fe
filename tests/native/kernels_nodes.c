/* Products of all types, with few and many columns, packed and unpacked weights, for each set of features: nodes.h. */
#include "nodes.h"

/* Rows of the type: random floats converted to it, by its quantizer if it has no other conversion. */
static void *weights_of(rng *r, int type, int64_t k, int64_t rows)
{
    const agk_type_traits *t = agk_traits(type);
    float *x = floats(r, (size_t)(k * rows)), *imatrix = floats(r, (size_t)k);
    char *w = filled(agk_row_size(type, k) * (size_t)rows);
    for (int64_t i = 0; i < k; ++i) imatrix[i] = 1.0f + fabsf(imatrix[i]);
    if (type == AGK_F32)
        memcpy(w, x, (size_t)(k * rows) * 4);
    else if (t->from_float != NULL)
        for (int64_t i = 0; i < rows; ++i) t->from_float(x + i * k, w + (size_t)i * agk_row_size(type, k), k);
    else
        t->quantize(x, w, rows, k, imatrix);
    free(x);
    free(imatrix);
    return w;
}

static void mul_mat(rng *r, int type, int64_t k, int64_t m, int64_t n, bool packed)
{
    const bool quantized = agk_traits(type)->blck_size > 1;
    void *w = weights_of(r, type, k, m);
    float *x = floats(r, (size_t)(k * n));
    agk_node node = {.op = AGK_OP_mul_mat, .n_src = 2};
    node.src[0] = view_of(type, w, k, m, 1);
    node.src[1] = view_of(AGK_F32, x, k, n, 1);
    node.dst = view_of(AGK_F32, NULL, m, n, 1);
    /* Columns for quantized rows are bytes: their rounding error is 1 / 127 of the largest element at most, on
     * average a third of that. Columns for bf16 may be rounded to bf16, those for f16 to two terms of bf16. */
    compare(&node, packed, quantized ? 1e-2 : type == AGK_BF16 ? 3e-3 : type == AGK_F16 ? 2e-5 : 1e-6);
    free(w);
    free(x);
}

static void products(rng *r)
{
    static const int64_t columns[] = {1, 3, 9, 33, 70};
    for (int type = 0; type < AGK_TYPE_COUNT; ++type) {
        const agk_type_traits *t = agk_traits(type);
        if (t->vec_dot_type == AGK_NONE || t->to_float == NULL || (t->from_float == NULL && t->quantize == NULL))
            continue;
        const int64_t k = t->blck_size == 256 ? 512 : t->blck_size == 32 ? 288 : 384;
        for (size_t i = 0; i < sizeof columns / sizeof *columns; ++i) {
            mul_mat(r, type, k, 21, columns[i], false);
            if (columns[i] <= 9) mul_mat(r, type, k, 21, columns[i], true);
        }
    }
    mul_mat(r, AGK_F32, 201, 99, 49, false);
    mul_mat(r, AGK_F16, 77, 99, 50, false);
    mul_mat(r, AGK_Q8_0, 512, 70, 530, false);
}

int main(void)
{
    rng r = rng_new(0);
    products(&r);
    return 0;
}
