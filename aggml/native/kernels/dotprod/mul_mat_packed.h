/* Products of packed weights with 1 to 8 columns, sdot: the template for types with blocks of 32 and of 256
 * (mul_mat_packed.h).
 *
 * A vector of a group is four NEON vectors here, each of 4 rows x 4 k, which are multiplied by 4 k of a column as a
 * lane. For 4 rows x 32 k, 8 vectors of codes are unpacked once for all columns; each column then takes 8 sdot, a
 * conversion and two products. Sums are in L1, which costs a load and a store for 8 sdot. If they were in registers,
 * each number of columns would need its own code, 200 KB and a minute to compile. Codes are below 128, or are made
 * signed by subtracting their offset of 128. A file includes this and names its types; used only through
 * lines that need AGK_NEON_DOTPROD. */
#ifndef AGK_DOTPROD_PACKED_H
#define AGK_DOTPROD_PACKED_H

#include <arm_neon.h>

#include "kernels/inline.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat_packed.h"
#include "kernels/mul_mat_packed_types.h"

enum { AHEAD = 2048, QUARTERS = 4 }; /* bytes to prefetch ahead */

/* Types whose codes are unsigned; the sums of the columns correct for their offset. */
AGK_INLINE bool has_offset(code_type t)
{
    return !has_minimum(t) && largest_code(t) <= 127;
}

/* 4 rows of vector i; p points to these rows. */
AGK_INLINE uint8x16_t vector(const char *p, int i)
{
    return vld1q_u8((const uint8_t *)p + 64 * i);
}

/* Each byte shifted right (left, if negative), then masked. */
AGK_INLINE uint8x16_t shifted(uint8x16_t x, int right, int mask)
{
    const uint8x16_t y = right > 0 ? x >> (uint8_t)right : right < 0 ? x << (uint8_t)-right : x;
    return vandq_u8(y, vdupq_n_u8((uint8_t)mask));
}

/* The third bits of rows 4 quarter .. 4 quarter + 3, in each byte of a lane. */
AGK_INLINE uint8x16_t third_bits(const char *mask, int quarter)
{
    static const uint32_t row[4] = {1, 2, 4, 8};
    uint16_t rows;
    memcpy(&rows, mask, sizeof rows);
    const uint32x4_t set = vtstq_u32(vdupq_n_u32((uint32_t)rows >> 4 * quarter), vld1q_u32(row));
    return vandq_u8(vreinterpretq_u8_u32(set), vdupq_n_u8(4));
}

/* The codes of 4 rows (a quarter of 16) x 32 k in the order of k. A block of 256 has two halves of four parts; only the
 * part is known at compile time. */
AGK_INLINE void codes(code_type t, const char *block, int quarter, int64_t half, int part, int8x16_t out[8])
{
    const char *data = block + data_at(t) + 16 * quarter;
    uint8x16_t w[8];
    if (t == Q8_0) {
        AGK_UNROLL for (int v = 0; v < 8; ++v) w[v] = veorq_u8(vector(data, v), vdupq_n_u8(128));
    } else if (of_256(t) && !nibbles_of_256(t)) {
        AGK_UNROLL for (int v = 0; v < 8; ++v)
        {
            w[v] = shifted(vector(data + low_bits_at(t, half, part, v), 0), low_shift(t, part), low_mask(t));
            if (high_mask(t) == 0) continue;
            const uint8x16_t high = vector(data + high_bits_at(t, half, v), 0);
            w[v] = vorrq_u8(w[v], shifted(high, high_shift(t, part, v) - high_place(t), high_mask(t)));
        }
    } else {
        const bool fifth = bits_of(t) == Q5_0;
        const char *qs = data + (fifth ? 64 : nibbles_of_256(t) ? 1024 * half + 256 * part : 0);
        AGK_UNROLL for (int v = 0; v < 4; ++v)
        {
            const uint8x16_t q = vector(qs, v);
            w[v] = shifted(q, 0, 15);
            w[v + 4] = vshrq_n_u8(q, 4);
        }
        if (fifth) {
            const uint8x16_t bits = vector(data, 0);
            AGK_UNROLL for (int v = 0; v < 8; ++v) w[v] = vorrq_u8(w[v], shifted(bits, v - 4, 16));
        }
    }
    if (elements_of_mask(t) > 0) {
        AGK_UNROLL for (int v = 0; v < 8; ++v)
        {
            w[v] = vorrq_u8(w[v], third_bits(block + mask_at(t, 128 * half + 32 * part + 4 * v), quarter));
        }
    }
    if (has_levels(t)) {
        const uint8x16_t table = veorq_u8(vld1q_u8(levels_of(t)), vdupq_n_u8(has_offset(t) ? 0 : 128));
        AGK_UNROLL for (int v = 0; v < 8; ++v) w[v] = vqtbl1q_u8(table, w[v]);
    }
    AGK_UNROLL for (int v = 0; v < 8; ++v) out[v] = vreinterpretq_s8_u8(w[v]);
}

/* 16 floats, a quarter in each vector. */
AGK_INLINE void halves(const char *p, float32x4_t out[QUARTERS])
{
    AGK_UNROLL for (int q = 0; q < QUARTERS; ++q)
    {
        float16x4_t x;
        memcpy(&x, p + 8 * q, sizeof x);
        out[q] = vcvt_f32_f16(x);
    }
}

/* scale[q] = d[q] * bytes, those of 16 rows. */
AGK_INLINE void times_bytes(bool negative, uint8x16_t x, const float32x4_t d[QUARTERS], float32x4_t scale[QUARTERS])
{
    const int8x16_t s = vreinterpretq_s8_u8(x);
    const int16x8_t low = negative ? vmovl_s8(vget_low_s8(s)) : vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(x)));
    const int16x8_t high = negative ? vmovl_s8(vget_high_s8(s)) : vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(x)));
    scale[0] = vmulq_f32(d[0], vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))));
    scale[1] = vmulq_f32(d[1], vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))));
    scale[2] = vmulq_f32(d[2], vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))));
    scale[3] = vmulq_f32(d[3], vcvtq_f32_s32(vmovl_s16(vget_high_s16(high))));
}

AGK_INLINE uint8x16_t bytes(const char *p)
{
    return vld1q_u8((const uint8_t *)p);
}

/* Half of 2^(e - 127): the bits of 2^(e - 128), which is subnormal below e = 2. */
AGK_INLINE void halves_of_e8m0(const char *p, float32x4_t out[QUARTERS])
{
    uint8_t e[16];
    uint32_t bits[16];
    memcpy(e, p, sizeof e);
    for (int i = 0; i < 16; ++i) bits[i] = e[i] < 2 ? 0x200000u << e[i] : (uint32_t)(e[i] - 1) << 23;
    AGK_UNROLL for (int q = 0; q < QUARTERS; ++q) out[q] = vreinterpretq_f32_u32(vld1q_u32(bits + 4 * q));
}

/* Halves of 16 e4m3: as the upper byte of an f16, shifted by one, each is 2^8 times too small. */
AGK_INLINE void halves_of_e4m3(const char *p, float32x4_t out[QUARTERS])
{
    AGK_UNROLL for (int q = 0; q < QUARTERS; q += 2)
    {
        const uint16x8_t x = vshll_n_u8(vld1_u8((const uint8_t *)p + 4 * q), 7);
        out[q] = vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(x))), 128.0f);
        out[q + 1] = vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(x))), 128.0f);
    }
}

/* 2 s + 1 */
AGK_INLINE uint8x16_t odd(uint8x16_t s)
{
    return vorrq_u8(vaddq_u8(s, s), vdupq_n_u8(1));
}

/* The scales of sub-block j and the factors for the sums of the columns: one of each, two where there is a scale for
 * each 16. d, m: those of the block, m with its sign. */
AGK_INLINE void scales_of(code_type t, const char *block, int64_t j, const float32x4_t d[QUARTERS],
                          const float32x4_t m[QUARTERS], float32x4_t scale[2][QUARTERS],
                          float32x4_t minimum[2][QUARTERS])
{
    if (t == Q2_K) {
        AGK_UNROLL for (int h = 0; h < 2; ++h)
        {
            const uint8x16_t x = bytes(block + 64 + 16 * (2 * j + h));
            times_bytes(false, vandq_u8(x, vdupq_n_u8(15)), d, scale[h]);
            times_bytes(false, vshrq_n_u8(x, 4), m, minimum[h]);
        }
    } else if (t == NVFP4) {
        AGK_UNROLL for (int h = 0; h < 2; ++h) halves_of_e4m3(block + 16 * h, scale[h]);
    } else if (has_nibble_scales(t) && scale_per_16(t)) {
        const uint8x16_t x = bytes(block + 32 + 16 * j);
        times_bytes(false, odd(vandq_u8(x, vdupq_n_u8(15))), d, scale[0]);
        times_bytes(false, odd(vshrq_n_u8(x, 4)), d, scale[1]);
    } else if (has_nibble_scales(t)) {
        const uint8x16_t x = bytes(block + 32 + 16 * (j >> 1));
        times_bytes(false, odd((j & 1) == 0 ? vandq_u8(x, vdupq_n_u8(15)) : vshrq_n_u8(x, 4)), d, scale[0]);
    } else if (has_signed_scales(t) && scale_per_16(t)) {
        AGK_UNROLL for (int h = 0; h < 2; ++h) times_bytes(true, bytes(block + 32 + 16 * (2 * j + h)), d, scale[h]);
    } else if (t == Q4_K || t == Q5_K) {
        times_bytes(false, bytes(block + 64 + 16 * j), d, scale[0]);
        times_bytes(false, bytes(block + 192 + 16 * j), m, minimum[0]);
    } else if (has_signed_scales(t)) {
        times_bytes(true, bytes(block + 32 + 16 * j), d, scale[0]);
    } else {
        AGK_UNROLL for (int q = 0; q < QUARTERS; ++q) scale[0][q] = d[q], minimum[0][q] = m[q];
    }
}

AGK_INLINE float one(const char *p)
{
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

AGK_INLINE int32_t whole(const char *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* s + 16 k: 4 vectors of codes times the lanes of x. */
AGK_INLINE int32x4_t sixteen(int32x4_t s, const int8x16_t w[4], int8x16_t x)
{
    s = vdotq_laneq_s32(s, w[0], x, 0);
    s = vdotq_laneq_s32(s, w[1], x, 1);
    s = vdotq_laneq_s32(s, w[2], x, 2);
    return vdotq_laneq_s32(s, w[3], x, 3);
}

/* A sub-block, 32 k, of n columns that lie at x; acc: [column][16 rows]. */
AGK_INLINE void sub_block(code_type t, int64_t n, const char *block, int64_t half, int part,
                          const float32x4_t d[QUARTERS], const float32x4_t m[QUARTERS], const char *x,
                          float (*acc)[AGK_PACKED_ROWS])
{
    const int scales = scale_per_16(t) ? 2 : 1;
    float32x4_t scale[2][QUARTERS], minimum[2][QUARTERS];
    scales_of(t, block, 4 * half + part, d, m, scale, minimum);
    for (int q = 0; q < QUARTERS; ++q) {
        int8x16_t w[8];
        codes(t, block, q, half, part, w);
        for (int64_t j = 0; j < n; ++j) {
            const int8_t *column = (const int8_t *)x + 12 * n + 32 * j;
            const int8x16_t x0 = vld1q_s8(column), x1 = vld1q_s8(column + 16);
            const float dx = one(x + 4 * j);
            float32x4_t sum = vld1q_f32(acc[j] + 4 * q);
            AGK_UNROLL for (int h = 0; h < scales; ++h)
            {
                const char *of_column = x + 4 * ((h + 1) * n + j);
                int32x4_t s = vdupq_n_s32(has_offset(t) ? whole(of_column) : 0);
                if (scale_per_16(t))
                    s = sixteen(s, w + 4 * h, h == 0 ? x0 : x1);
                else
                    s = sixteen(sixteen(s, w, x0), w + 4, x1);
                sum = vfmaq_f32(sum, vcvtq_f32_s32(s), vmulq_n_f32(scale[h][q], dx));
                if (has_minimum(t)) sum = vfmaq_n_f32(sum, minimum[h][q], one(of_column));
            }
            vst1q_f32(acc[j] + 4 * q, sum);
        }
    }
}

AGK_INLINE void group(code_type t, const agk_mm_block *b, const char *a, int64_t rows, float *c)
{
    const int64_t n = b->cols;
    const size_t bytes_of_block = data_at(t) + 64 * vectors(t), unit = (size_t)n * AGK_PACKED_COLUMN;
    const int parts = of_256(t) ? 4 : 1, halves_of_block = of_256(t) ? 2 : 1;
    const size_t ahead = bytes_of_block / (size_t)(parts * halves_of_block);
    const char *x = b->b;
    float acc[AGK_PACKED_COLUMNS][AGK_PACKED_ROWS] = {{0}};
    for (int64_t k = 0; k < b->k; k += of_256(t) ? 256 : 32, a += bytes_of_block) {
        float32x4_t d[QUARTERS], m[QUARTERS];
        AGK_UNROLL for (int q = 0; q < QUARTERS; ++q) m[q] = vdupq_n_f32(0.0f);
        if (t == MXFP4)
            halves_of_e8m0(a, d);
        else
            halves(a, d);
        const float too_large = packed_types[t].unit;
        AGK_UNROLL for (int q = 0; q < QUARTERS; ++q) d[q] = vmulq_n_f32(d[q], 1.0f / too_large);
        if (has_minimum(t)) {
            halves(a + 32, m);
            if (of_256(t)) { /* types whose minimum is subtracted */
                AGK_UNROLL for (int q = 0; q < QUARTERS; ++q) m[q] = vnegq_f32(m[q]);
            }
        }
        for (int64_t half = 0; half < halves_of_block; ++half) {
            AGK_UNROLL for (int part = 0; part < parts; ++part, x += unit)
            {
                const char *next = a + AHEAD + (size_t)(half * parts + part) * ahead;
                AGK_UNROLL for (size_t line = 0; line < ahead; line += 64) __builtin_prefetch(next + line);
                sub_block(t, n, a, half, part, d, m, x, acc);
            }
        }
    }
    for (int64_t j = 0; j < n; ++j) {
        void *to = (char *)c + (size_t)j * b->ldc;
        memcpy(to, acc[j], (size_t)(rows < AGK_PACKED_ROWS ? rows : AGK_PACKED_ROWS) * sizeof(float));
    }
}

#define AGK_PACKED(name, t, ...) \
    void agk_mm_packed_##name##_dotprod(const agk_mm_block *b) \
    { \
        const char *a = b->a; \
        for (int64_t row = 0; row < b->rows; row += AGK_PACKED_ROWS, a += b->lda) { \
            group(t, b, a, b->rows - row, b->c + row); \
        } \
    }

#endif
