/* Numbers as bf16 terms in plain C (kernels/mul_mat_panels.h). All static inline. */
#ifndef AGK_SCALAR_MUL_MAT_TERMS_H
#define AGK_SCALAR_MUL_MAT_TERMS_H

#include "formats/quant.h"
#include "kernels/mul_mat_panels.h"
#include "table/kernel_types.h"

enum { STEP = AGK_PANEL_K, TILE = AGK_TERMS_TILE / 2, UNIT = AGK_MM_UNIT };

static inline float upper(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint16_t rounded(float x)
{
    uint16_t bits;
    agk_f32_to_bf16_scalar(&x, &bits, 1);
    return bits;
}

static inline bool split(int terms, float x, uint16_t out[3])
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    for (int t = 0; t + 1 < terms; ++t) {
        const float term = upper(x);
        out[t] = rounded(term);
        x -= term;
    }
    out[terms - 1] = rounded(x);
    return terms == 1 || agk_terms_can_split(bits);
}

static inline float bf16(const char *at, int64_t i)
{
    uint16_t bits;
    float value;
    memcpy(&bits, at + 2 * i, sizeof bits);
    const uint32_t wide = (uint32_t)bits << 16;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* The epilogue of a sum x: act(x + bias), and the second operand. */
static inline float apply_end(const agk_mm_end *e, int64_t row, int64_t col, float x)
{
    if (e->bias != NULL) x += e->bias[row];
    if (e->act >= 0 && !e->gates) agk_unary_f32_scalar(e->act, 1, &x, &x);
    if (e->other == NULL) return x;
    float other = ((const float *)(const void *)(e->other + (size_t)col * e->ld_other))[row];
    if (e->gates) agk_unary_f32_scalar(e->act, 1, &other, &other);
    return e->gated ? x * other : x + other;
}

#endif
