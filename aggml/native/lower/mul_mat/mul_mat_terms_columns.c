/* The first step of mul_mat of panels and units: columns of b are packed, for all rows. Where numbers are several terms, each unit
 * learns whether its own could be split. Not here: kernels that pack (amx/, avx512/), who reads it (mul_mat_terms_items.c). */
#include "mul_mat_terms_plan.h"

/* Whether numbers too small to be split are lost in what stands beside them: in each of n columns of k floats the largest
 * is finite and at least 2^-100, so that 2^-126 more or less is 2^-26 of it; or all are zero. Behind a gelu, values below
 * 2^-110 are in every other unit. */
static bool too_small_to_count(int64_t k, int64_t n, const char *b, int64_t ldb)
{
    enum { LANES = 16 };
    for (int64_t j = 0; j < n; ++j, b += ldb) {
        uint32_t most[LANES] = {0}, largest = 0;
        for (int64_t i = 0; i < k; i += LANES) {
            uint32_t bits[LANES] = {0};
            memcpy(bits, b + 4 * i, (size_t)agk_mm_least(LANES, k - i) * 4);
            for (int l = 0; l < LANES; ++l) {
                const uint32_t magnitude = bits[l] & 0x7fffffffu;
                most[l] = (int32_t)magnitude > (int32_t)most[l] ? magnitude : most[l];
            }
        }
        for (int l = 0; l < LANES; ++l) largest = most[l] > largest ? most[l] : largest;
        if (largest >= 0x7f800000u || (largest > 0 && largest < (127u - 100u) << 23)) return false;
    }
    return true;
}

/* n columns of k floats to a unit; false: some cannot be split. */
static bool pack_unit(const agk_terms_plan *p, int64_t k, int64_t n, const void *b, size_t ldb, char *out)
{
    enum { LINE = AGK_MM_UNIT * sizeof(float) };
    if (p->bytes.served) {
        p->pack.bytes(p->bytes.halves, p->bytes.wide, k, n, b, ldb, out);
        return true;
    }
    if (!p->whole) return p->pack.cols(p->terms, k, n, b, ldb, out);
    p->pack.floats(k, n, b, ldb, out);
    memset(out + k * LINE, 0, agk_terms_unit_bytes(p->terms, k) - (size_t)(k * LINE));
    return true;
}

agk_status agk_terms_columns_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_terms_plan p = agk_terms_plan_of(node);
    const agk_view *b = &node->src[1];
    const int64_t k = b->ne[0], units = agk_terms_units(b), all = units * b->ne[2] * b->ne[3];
    bool *fine = agk_terms_split(task, node, &p);
    for (int64_t i = chunk * p.units_per_chunk; i < agk_mm_least(all, (chunk + 1) * p.units_per_chunk); ++i) {
        const int64_t first = i % units * AGK_MM_UNIT, n = agk_mm_least(AGK_MM_UNIT, b->ne[1] - first);
        const char *from = agk_terms_matrix(task, b, i / units % b->ne[2], i / units / b->ne[2]) + first * b->nb[1];
        char *of_matrix = agk_terms_columns(task, node, &p, i / units);
        fine[i] = true;
        for (int64_t k0 = 0; k0 < k; k0 += p.k_block) {
            const int64_t kn = agk_mm_least(p.k_block, k - k0);
            const void *x = from + (int64_t)agk_row_size(b->type, k0);
            size_t stride = (size_t)b->nb[1];
            if (p.col.floats != NULL) {
                const size_t bytes = agk_mm_col_bytes(p.bytes.served ? AGK_MM_Q8 : AGK_MM_FLOATS, p.k_block);
                for (int64_t j = 0; j < n; ++j) {
                    const void *column = (const char *)x + (size_t)j * stride;
                    void *to = (char *)task->scratch + (size_t)j * bytes;
                    if (p.bytes.served)
                        p.col.bytes(column, to, kn);
                    else
                        p.col.floats(column, to, kn);
                }
                x = task->scratch;
                stride = bytes;
            }
            fine[i] =
                pack_unit(&p, kn, n, x, stride, agk_terms_block(&p, of_matrix, units, i % units, k0, kn)) && fine[i];
        }
        if (!fine[i] && p.col.floats == NULL) fine[i] = too_small_to_count(k, n, from, b->nb[1]);
    }
    return AGK_OK;
}
