/* Products of packed weights in plain C, with which the variants are compared: each element is unpacked from its
 * lane by itself. Not here: how weights and columns are packed (mul_mat_packed.c). */
#include "formats/quant.h"
#include "kernels/mul_mat_packed.h"
#include "kernels/mul_mat_packed_types.h"
#include "table/kernel_types.h"

#include "mul_mat_plain.h"

enum { ROWS = AGK_PACKED_ROWS, VECTOR = 64 };

static float half_at(const char *block, int which, int row)
{
    uint16_t value;
    memcpy(&value, block + 2 * (which * ROWS + row), sizeof value);
    return agk_f16_to_float(value);
}

/* The parts of element e of a block of one lane: code, scale, and what is added to each. */
typedef struct element {
    int code;
    float scale, minimum;
} element;

static int nibble(const uint8_t *lane, int at, bool high)
{
    return lane[at / 4 * VECTOR + at % 4] >> (high ? 4 : 0) & 15;
}

/* The bits of element e of a block of 256. */
static int bits_of_256(code_type t, const uint8_t *lane, int e)
{
    const int half = e / 128, part = e / 32 % 4, v = e % 32 / 4;
    if (nibbles_of_256(t)) return nibble(lane, e / 32 * 16 + e % 16, e % 32 >= 16);
    const int low = lane[low_bits_at(t, half, part, v) + (size_t)(e % 4)] >> low_shift(t, part) & low_mask(t);
    if (high_mask(t) == 0) return low;
    const int high = lane[high_bits_at(t, half, v) + (size_t)(e % 4)] >> high_shift(t, part, v);
    return low | (high << high_place(t) & high_mask(t));
}

static int bits_of_32(code_type t, const uint8_t *lane, int e)
{
    if (bits_of(t) == Q8_0) return lane[e / 4 * VECTOR + e % 4];
    if (bits_of(t) == Q4_0) return nibble(lane, e % 16, e >= 16);
    return nibble(lane + VECTOR, e % 16, e >= 16) | (lane[e % 4] >> (e / 4) & 1) << 4; /* q5_0, q5_1 */
}

static element element_at(code_type t, const char *block, int row, int e)
{
    const uint8_t *lane = (const uint8_t *)block + data_at(t) + 4 * row;
    const uint8_t *bytes = (const uint8_t *)block + 2 * ROWS + row; /* behind the scales of the block */
    const int sub = scale_per_16(t) ? e / 16 : e / 32;
    element x = {of_256(t) ? bits_of_256(t, lane, e) : bits_of_32(t, lane, e), 0.0f, 0.0f};
    if (elements_of_mask(t) > 0) {
        uint16_t third;
        memcpy(&third, block + mask_at(t, e), sizeof third);
        x.code |= (third >> row & 1) << 2;
    }
    if (has_levels(t)) x.code = levels_of(t)[x.code];
    x.scale = t == MXFP4   ? agk_half_of_e8m0((uint8_t)block[row])
              : t == NVFP4 ? agk_half_of_e4m3((uint8_t)block[sub * ROWS + row])
                           : half_at(block, 0, row) / packed_types[t].unit;
    if (has_minimum(t)) x.minimum = half_at(block, 1, row);
    if (has_nibble_scales(t)) {
        x.scale *= (float)(2 * (bytes[sub / 2 * ROWS] >> 4 * (sub % 2) & 15) + 1);
    } else if (has_signed_scales(t)) {
        x.scale *= (float)(int8_t)bytes[sub * ROWS];
    } else if (t == Q2_K) {
        x.scale *= (float)(bytes[(2 + sub) * ROWS] & 15);
        x.minimum *= -(float)(bytes[(2 + sub) * ROWS] >> 4);
    } else if (t == Q4_K || t == Q5_K) {
        x.scale *= (float)bytes[(2 + sub) * ROWS];
        x.minimum *= -(float)bytes[(2 + 8 + sub) * ROWS];
    }
    return x;
}

/* Scale and element k of column j, for columns in lanes or on tiles. */
static double column_at(const agk_packed_layout *layout, const agk_mm_block *block, int64_t tiles, int64_t k, int64_t j)
{
    if (tiles == 0) {
        const int64_t width = block->cols;
        const char *unit = (const char *)block->b + k / AGK_MM_BLOCK * width * AGK_PACKED_COLUMN;
        const int8_t *q = (const int8_t *)unit + 12 * width + j * AGK_MM_BLOCK;
        return (double)((const float *)(const void *)unit)[j] * q[k % AGK_MM_BLOCK];
    }
    const int64_t per_scale = agk_packed_halves(layout) ? 16 : 32, per_tile = per_scale / 4, e = k % AGK_PACKED_UNIT;
    const char *unit = (const char *)block->b + (size_t)(k / AGK_PACKED_UNIT) * agk_packed_unit_bytes(layout, tiles);
    const int8_t *tile = (const int8_t *)unit + 24 * tiles + j / per_tile * AGK_PACKED_TILE;
    const int64_t line = e / per_scale * per_tile + j % per_tile;
    return (double)((const float *)(const void *)unit)[e / AGK_MM_BLOCK * tiles + j] * tile[line * AGK_PACKED_UNIT + e];
}

/* tiles: the number of columns that they are laid out for; 0: they are in lanes. */
static void product(code_type t, int type, const agk_mm_block *block, int64_t tiles)
{
    const agk_packed_layout *layout = agk_packed_layout_of(type);
    const int64_t n = block->cols;
    for (int64_t row = 0; row < block->rows; ++row) {
        const char *a = (const char *)block->a + (size_t)(row / ROWS) * block->lda;
        double sum[AGK_PACKED_MOST] = {0};
        for (int64_t k = 0; k < block->k; ++k) {
            const element x =
                element_at(t, a + (size_t)(k / layout->k) * layout->bytes, (int)(row % ROWS), (int)(k % layout->k));
            const double value = (double)x.scale * (x.code - layout->offset) + (double)x.minimum;
            for (int64_t j = 0; j < n; ++j) sum[j] += value * column_at(layout, block, tiles, k, j);
        }
        for (int64_t j = 0; j < n; ++j)
            *(float *)(void *)((char *)block->c + (size_t)j * block->ldc + 4 * row) = (float)sum[j];
    }
}

#define PRODUCT(name, KIND, ...) \
    void agk_mm_packed_##name##_scalar(const agk_mm_block *block) \
    { \
        product(KIND, AGK_##KIND, block, 0); \
    } \
    void agk_mm_packed_tiles_##name##_scalar(const agk_mm_block *block) \
    { \
        product(KIND, AGK_##KIND, block, block->cols <= AGK_PACKED_MOST / 2 ? AGK_PACKED_MOST / 2 : AGK_PACKED_MOST); \
    }
AGK_MM_QUANTIZED(PRODUCT, )

/* Weights of bf16: 16 rows x 2 k in a vector, behind the head of a group; columns of bf16 or f32, ldb apart. */
static void product_of_bf16(const agk_mm_block *block, bool floats)
{
    for (int64_t row = 0; row < block->rows; ++row) {
        const char *a = (const char *)block->a + (size_t)(row / ROWS) * block->lda + AGK_PACKED_HEAD;
        for (int64_t j = 0; j < block->cols; ++j) {
            const char *x = (const char *)block->b + (size_t)j * block->ldb;
            double sum = 0.0;
            for (int64_t k = 0; k < block->k; ++k) {
                uint16_t w, narrow;
                float y;
                memcpy(&w, a + k / 2 * VECTOR + row % ROWS * 4 + k % 2 * 2, sizeof w);
                memcpy(&narrow, x + 2 * k, sizeof narrow);
                if (floats)
                    memcpy(&y, x + 4 * k, sizeof y);
                else
                    y = bf16(narrow);
                sum += (double)bf16(w) * (double)y;
            }
            *(float *)(void *)((char *)block->c + (size_t)j * block->ldc + 4 * row) = (float)sum;
        }
    }
}

void agk_mm_packed_pairs_scalar(const agk_mm_block *block)
{
    product_of_bf16(block, false);
}

void agk_mm_packed_floats_scalar(const agk_mm_block *block)
{
    product_of_bf16(block, true);
}
