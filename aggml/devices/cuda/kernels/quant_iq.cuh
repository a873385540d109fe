// Types whose codes are points of a codebook, most with separate signs: iq1, iq2, iq3.
#pragma once
#include "quant_words.cuh"

// The codebooks: levels of 2 or 3 bits, element 0 lowest.
#define P(code) code,
CONSTANT u16 iq2_xxs_points[256] = {
#define AGK_IQ2_XXS
#include "quant_iq_grid_2.def"
};
CONSTANT u16 iq2_xs_points[512] = {
#define AGK_IQ2_XS
#include "quant_iq_grid_2.def"
};
CONSTANT u16 iq2_s_points[1024] = {
#define AGK_IQ2_S
#include "quant_iq_grid_2.def"
};
CONSTANT u16 iq1_points[2048] = {
#define AGK_IQ1
#include "quant_iq_grid_2.def"
};
CONSTANT u16 iq3_xxs_points[256] = {
#define AGK_IQ3_XXS
#include "quant_iq_grid_3.def"
};
CONSTANT u16 iq3_s_points[512] = {
#define AGK_IQ3_S
#include "quant_iq_grid_3.def"
};
#undef P

// Bytes whose sign is set are negated; none of them may be 0.
DEV int with_signs(u32 bytes, u32 signs)
{
    const u32 ones = spread1(signs);
    return (int)((bytes ^ ones * 255u) + ones);
}

DEV u32 even_signs(u32 seven)
{
    return seven | (u32)(__popc(seven) & 1) << 7;
}

// Eight values of a codebook of 2-bit levels: each level selects a byte of `table`.
DEV void point8(u32 point, u32 table, int *q0, int *q1)
{
    *q0 = (int)__byte_perm(table, 0, nibbles_of_pairs(point & 255));
    *q1 = (int)__byte_perm(table, 0, nibbles_of_pairs(point >> 8));
}

static const u32 IQ2_LEVELS = 0x002b1908u;                              // 8, 25, 43
static const u32 IQ1_UP = 0x000901f9u, IQ1_DOWN = 0x0007fff7u;          // 8 * (-1, 0, 1) + 1, - 1
static const u32 IQ3_XXS_LOW = 0x1c140c04u, IQ3_XXS_HIGH = 0x3e342c24u; // 4, 12, .. 52, 62
static const u32 IQ3_S_LOW = 0x07050301u, IQ3_S_HIGH = 0x0f0d0b09u;     // 1, 3, .. 15

UNPACK(iq2_xxs)
{
    const u32 points = word2(p + 2 + 8 * s), more = word2(p + 6 + 8 * s);
    scale_all(o, f16_at(p) * (0.5f + (float)(more >> 28)) * 0.25f);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        int q0, q1;
        point8(iq2_xxs_points[points >> 8 * k & 255], IQ2_LEVELS, &q0, &q1);
        const u32 signs = even_signs(more >> 7 * k & 127);
        o.q[2 * k] = with_signs((u32)q0, signs);
        o.q[2 * k + 1] = with_signs((u32)q1, signs >> 4);
    }
}

template <int T> DEV void unpack_iq2(const char *p, int s, Group &o)
{
    const float whole = f16_at(p);
    const u32 scales = byte_at(p + (T == IQ2_XS ? 66 : 74) + s);
    o.d[0] = whole * (0.5f + (float)(scales & 15)) * 0.25f;
    o.d[1] = whole * (0.5f + (float)(scales >> 4)) * 0.25f;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        u32 point, signs;
        if (T == IQ2_XS) {
            const u32 v = half_at(p + 2 + 2 * (4 * s + k));
            point = iq2_xs_points[v & 511];
            signs = even_signs(v >> 9);
        } else {
            const u32 high = byte_at(p + 66 + s) >> 2 * k & 3;
            point = iq2_s_points[byte_at(p + 2 + 4 * s + k) | high << 8];
            signs = byte_at(p + 34 + 4 * s + k);
        }
        int q0, q1;
        point8(point, IQ2_LEVELS, &q0, &q1);
        o.q[2 * k] = with_signs((u32)q0, signs);
        o.q[2 * k + 1] = with_signs((u32)q1, signs >> 4);
    }
}

UNPACK(iq2_xs) { unpack_iq2<IQ2_XS>(p, s, o); }
UNPACK(iq2_s) { unpack_iq2<IQ2_S>(p, s, o); }

UNPACK(iq3_xxs)
{
    const u32 more = word2(p + 66 + 4 * s);
    scale_all(o, f16_at(p) * (0.5f + (float)(more >> 28)) * 0.5f);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        const u32 levels = nibbles_of_threes(iq3_xxs_points[byte_at(p + 2 + 8 * s + k)]);
        const u32 signs = even_signs(more >> 7 * (k / 2) & 127) >> 4 * (k & 1);
        o.q[k] = with_signs(__byte_perm(IQ3_XXS_LOW, IQ3_XXS_HIGH, levels), signs);
    }
}

UNPACK(iq3_s)
{
    const float d = f16_at(p) * (float)(1 + 2 * (byte_at(p + 106 + s / 2) >> (s % 2 * 4) & 15));
    const u32 high = byte_at(p + 66 + s);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        const u32 levels = nibbles_of_threes(iq3_s_points[byte_at(p + 2 + 8 * s + k) | (high >> k & 1) << 8]);
        const u32 signs = byte_at(p + 74 + 4 * s + k / 2) >> 4 * (k & 1);
        o.q[k] = with_signs(__byte_perm(IQ3_S_LOW, IQ3_S_HIGH, levels), signs);
    }
    scale_all(o, d);
}

UNPACK(iq1_s)
{
    const u32 h = half_at(p + 34 + 2 * s);
    const float d = f16_at(p) * (float)(2 * (h >> 12 & 7) + 1) * 0.125f;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const u32 point = iq1_points[byte_at(p + 2 + 4 * s + k) | (h >> 3 * k & 7) << 8];
        point8(point, h >> 15 ? IQ1_DOWN : IQ1_UP, &o.q[2 * k], &o.q[2 * k + 1]);
    }
    scale_all(o, d);
}

UNPACK(iq1_m)
{
    const u32 w0 = half_at(p + 48), w1 = half_at(p + 50), w2 = half_at(p + 52), w3 = half_at(p + 54);
    const u32 bits = w0 >> 12 | (w1 >> 8 & 0xf0) | (w2 >> 4 & 0xf00) | (w3 & 0xf000);
    const float whole = half_to_float((u16)bits) * 0.125f;
    const u32 scales = half_at(p + 48 + 2 * (s / 2)) >> (s % 2 * 6);
    o.d[0] = whole * (float)(2 * (scales & 7) + 1);
    o.d[1] = whole * (float)(2 * (scales >> 3 & 7) + 1);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const u32 h = byte_at(p + 32 + 2 * s + k / 2) >> 4 * (k & 1);
        const u32 point = iq1_points[byte_at(p + 4 * s + k) | (h & 7) << 8];
        point8(point, h & 8 ? IQ1_DOWN : IQ1_UP, &o.q[2 * k], &o.q[2 * k + 1]);
    }
}
