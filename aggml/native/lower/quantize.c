/* quantize: converts rows of floats to blocks of any type by its slow, accurate quantizer, with weights of columns or
 * without.
 *
 * Not here: the quantizers (formats/quant*.c), the conversions of ops (cpy.c). The rules are those of
 * ggml_quantize_chunk. */
#include "table/kernel_types.h"
#include "units.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WRITE }; /* slots of node->aux */

enum {
    GRAIN = 256,  /* elements; a multiple of every block size */
    IN_L1 = 4096, /* elements of f16, which are looked at twice */
    MOST_CHUNKS = 1 << 18
};

/* In the recorded results f16 keeps no bits of a NaN here, while the instruction would. Few pieces have any NaN, and
 * results are half the bytes to look at. */
static void plain_nans(const float *from, uint16_t *to, int64_t n)
{
    enum { INFINITE = 0x7c00 };
    int16_t most = 0;
    for (int64_t i = 0; i < n; ++i) {
        const int16_t size = (int16_t)(to[i] & 0x7fff);
        most = size > most ? size : most;
    }
    for (int64_t i = 0; most > INFINITE && i < n; ++i) {
        if (from[i] != from[i]) to[i] = (uint16_t)(0x7e00 | (to[i] & 0x8000));
    }
}

/* Whether all of n numbers are finite: blocks have no NaN and no infinity, so ggml would write other numbers. If not,
 * the message names the first that is none; `first` is its place in x. */
static agk_status check_finite(const agk_task *task, const agk_view *x, const float *from, int64_t n, int64_t first)
{
    enum { PIECE = 1024, INFINITE = 0x7f800000 }; /* the bits of infinity; those of NaN are more */
    for (int64_t i = 0; i < n; i += PIECE) {
        const int64_t end = n - i < PIECE ? n : i + PIECE;
        int32_t largest = 0; /* as integers, whose maximum takes no order: compilers make vectors of it */
        for (int64_t j = i; j < end; ++j) {
            int32_t bits;
            memcpy(&bits, from + j, sizeof bits);
            bits &= 0x7fffffff;
            largest = bits > largest ? bits : largest;
        }
        for (int64_t j = i; largest >= INFINITE && j < end; ++j) {
            if (isfinite(from[j])) continue;
            const int64_t place = first + j;
            snprintf(task->message, AGK_MESSAGE,
                     "[quantize] x is %f in row %lld, column %lld: blocks hold finite numbers", (double)from[j],
                     (long long)(place / x->ne[0]), (long long)(place % x->ne[0]));
            return AGK_INVALID;
        }
    }
    return AGK_OK;
}

/* Without weights no type looks beyond its block, so all rows are treated as one: a unit is GRAIN elements. */
static agk_status run_flat(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *dst = &node->dst, *x = &node->src[0];
    const agk_type_traits *traits = agk_traits(dst->type);
    const int64_t per_chunk = node->aux.i[AGK_PER_CHUNK] * GRAIN, first = chunk * per_chunk;
    const int64_t n = agk_chunk_end(chunk, per_chunk, agk_nelements(x)) - first;
    const float *from = (const float *)agk_data(task, x) + first;
    void *to = (char *)agk_data(task, dst) + agk_row_size(dst->type, first);
    if (traits->blck_size > 1) {
        const agk_status status = check_finite(task, x, from, n, first);
        if (status != AGK_OK) return status;
    }
    if (traits->quantize != NULL) {
        traits->quantize(from, to, 1, n, NULL);
        return AGK_OK;
    }
    agk_from_float_fn *write = (agk_from_float_fn *)node->aux.fn[WRITE];
    const int64_t step = dst->type == AGK_F16 ? IN_L1 : n;
    for (int64_t i = 0; i < n; i += step) {
        const int64_t size = n - i < step ? n - i : step;
        write(from + i, (char *)to + agk_row_size(dst->type, i), size);
        if (dst->type == AGK_F16) plain_nans(from + i, (uint16_t *)to + i, size);
    }
    return AGK_OK;
}

/* A unit is a row. */
static agk_status run_weighted(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *dst = &node->dst, *x = &node->src[0];
    const agk_range rows = agk_units_of(node, chunk);
    const int64_t n = x->ne[0], first = rows.first * n;
    const float *from = (const float *)agk_data(task, x) + first;
    const agk_status status = check_finite(task, x, from, (rows.last - rows.first) * n, first);
    if (status != AGK_OK) return status;
    agk_traits(dst->type)->quantize(from, (char *)agk_data(task, dst) + agk_row_size(dst->type, first),
                                    rows.last - rows.first, n, agk_data(task, &node->src[1]));
    return AGK_OK;
}

static bool dense(const agk_view *view)
{
    const int64_t row = (int64_t)agk_row_size(view->type, view->ne[0]);
    return view->nb[0] == (int64_t)agk_traits(view->type)->type_size && view->nb[1] == row && view->ne[2] == 1 &&
           view->ne[3] == 1;
}

agk_status agk_lower_quantize(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *x = &node->src[0], *weights = &node->src[1];
    const agk_type_traits *traits = agk_traits(dst->type);
    const bool weighted = agk_has(node, 1) && traits->quantize != NULL;
    if (traits->quantize == NULL && traits->from_float == NULL) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "there is no quantizer for %s", agk_type_name(dst->type));
    }
    if (traits->needs_imatrix && !weighted) {
        return agk_refuse(lowering, AGK_INVALID, "%s needs an importance matrix", traits->name);
    }
    if (x->type != AGK_F32 || !agk_same_shape(dst, x) || x->ne[0] % traits->blck_size != 0 || !dense(x) ||
        !dense(dst) || (agk_has(node, 1) && (weights->type != AGK_F32 || weights->ne[0] != x->ne[0]))) {
        return agk_refuse(
            lowering, AGK_INVALID,
            "rows of %lld %s cannot be quantized into rows of %lld %s: they differ or are no whole blocks",
            (long long)x->ne[0], agk_type_name(x->type), (long long)dst->ne[0], traits->name);
    }
    const int64_t n = agk_nelements(x);
    if (n == 0) return AGK_OK;
    node->aux.fn[WRITE] = (agk_any_fn *)agk_writer(dst->type, lowering->cpu);
    const double each =
        traits->quantize != NULL && (weighted || traits->blck_size > 32) ? 100.0 : agk_traits(dst->type)->write_ns;
    const int64_t units = weighted ? x->ne[1] : (n + GRAIN - 1) / GRAIN,
                  fair = agk_units_per_chunk(units, each * (double)(weighted ? x->ne[0] : GRAIN));
    agk_add_step(lowering, weighted ? run_weighted : run_flat,
                 agk_cut(node, units, fair > units / MOST_CHUNKS ? fair : units / MOST_CHUNKS + 1));
    return AGK_OK;
}
