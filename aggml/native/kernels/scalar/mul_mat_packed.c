/* Weights and columns packed for few columns (mul_mat_packed.h).
 *
 * Packing moves words of 4 bytes and keeps up with memory. From caches vectors are three to seven times as fast,
 * so AVX-512 has a variant for experts that are packed for one product (kernels/avx512/mul_mat_packed_group.h). Not
 * here: the codes of codebooks (mul_mat_packed_books.c), the products (mul_mat_packed_product.c). */
#include "table/kernel_types.h"
#include "kernels/mul_mat_panels.h"
#include "formats/quant.h"

#include "mul_mat_packed_books.h"

enum { ROWS = AGK_PACKED_ROWS, VECTOR = 64 };

const agk_packed_layout *agk_packed_layout_of(int type)
{
    static const agk_packed_layout layouts[] = {
        [AGK_F32] = {32, 3 * AGK_TERMS_TILE, 0, AGK_NO_SUMS, 0, false},
        [AGK_F16] = {32, 2 * AGK_TERMS_TILE, 0, AGK_NO_SUMS, 0, false},
        [AGK_BF16] = {32, AGK_TERMS_TILE, 0, AGK_NO_SUMS, 0, false},
#define AGK_PACKED(NAME, symbol, head, vectors, sums, offset, bits, levels, unit) \
    [AGK_##NAME] = {NAME < Q2_K ? 32 : 256,           (head) + (vectors) * VECTOR, head, AGK_##sums, offset, \
                    LEVELS_##levels >= LEVELS_IQ3_XXS},
#include "table/types.def"
    };
    const size_t n = sizeof layouts / sizeof *layouts;
    return type >= 0 && (size_t)type < n && layouts[type].k > 0 ? &layouts[type] : NULL;
}

/* -- weights -------------------------------------------------------------------------------------------------- */

/* Copies n bytes of one row to its lane. */
static char *put_words(char *vectors, int row, const void *from, size_t n)
{
    const char *x = from;
    for (size_t i = 0; i < n / 4; ++i) memcpy(vectors + i * VECTOR + 4 * (size_t)row, x + 4 * i, 4);
    return vectors + n / 4 * VECTOR;
}

static void put_half(char *block, int which, int row, uint16_t value)
{
    memcpy(block + 2 * (which * ROWS + row), &value, sizeof value);
}

static void put_q8_0(const agk_block_q8_0 *x, int row, char *block, char *data)
{
    uint8_t q[AGK_MM_BLOCK];
    for (int i = 0; i < AGK_MM_BLOCK; ++i) q[i] = (uint8_t)(x->qs[i] ^ -128);
    put_half(block, 0, row, x->d);
    put_words(data, row, q, sizeof q);
}

/* Moves bit 4 v + i to bit v of byte i. */
static void put_fifth_bits(const uint8_t *qh, int row, char *data)
{
    uint8_t bits[4] = {0};
    for (int e = 0; e < AGK_MM_BLOCK; ++e) {
        bits[e % 4] = (uint8_t)(bits[e % 4] | (qh[e / 8] >> (e % 8) & 1) << (e / 4));
    }
    put_words(data, row, bits, sizeof bits);
}

/* The scales and minimums of six bits, 8 of each, four at a time: the first four are in the low bits of their bytes;
 * the others are nibbles, with their upper two bits on top of the first four. */
static void put_q4_k(const uint8_t *packed, int row, char *block)
{
    const uint32_t six = 0x3f3f3f3f, low = 0x0f0f0f0f, high = 0x30303030;
    uint32_t w[3];
    memcpy(w, packed, sizeof w);
    const uint32_t four[4] = {w[0] & six, (w[2] & low) | (w[0] >> 2 & high), w[1] & six,
                              (w[2] >> 4 & low) | (w[1] >> 2 & high)};
    for (int i = 0; i < 4; ++i) {
        char *to = block + (4 + 4 * i) * ROWS + row;
        for (int j = 0; j < 4; ++j) to[j * ROWS] = (char)(four[i] >> 8 * j);
    }
}

/* Puts low and high bits of a block of 256 of one row where products read them (mul_mat_packed_types.h). */
AGK_INLINE void put_bits(code_type t, const uint8_t *low, const uint8_t *high, int row, char *data)
{
    enum { PART = 32 }; /* bytes of low bits, which hold one element of four parts, or of two */
    char *lane = data + 4 * row;
    const int together = t == Q2_K || t == Q3_K ? 1 : 2, step = t == Q6_K ? 1 : 2;
    for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < together; ++i, low += PART) {
            for (int v = 0; v < 8; ++v) memcpy(lane + low_bits_at(t, half, step * i, v), low + 4 * v, 4);
        }
        for (int v = 0; v < 8 && t == Q6_K; ++v) memcpy(lane + high_bits_at(t, half, v), high + PART * half + 4 * v, 4);
        for (int v = 0; v < 4 && (t == Q3_K || t == Q5_K); ++v) {
            uint32_t first, second;
            memcpy(&first, high + 4 * v, sizeof first);
            memcpy(&second, high + PART / 2 + 4 * v, sizeof second);
            first = (first >> (4 * half) & 0x0f0f0f0f) | (second >> (4 * half) & 0x0f0f0f0f) << 4;
            memcpy(lane + high_bits_at(t, half, v), &first, sizeof first);
        }
    }
}

/* 32 elements of nvfp4, half of its block of 64: in the file 8 bytes hold 16 elements that share a scale. */
static void put_nvfp4(const agk_block_nvfp4 *x, int half, int row, char *block, char *data)
{
    const uint64_t low_nibbles = UINT64_C(0x0f0f0f0f0f0f0f0f);
    uint64_t first, last, qs[2];
    memcpy(&first, x->qs + 16 * half, sizeof first);
    memcpy(&last, x->qs + 16 * half + 8, sizeof last);
    qs[0] = (first & low_nibbles) | (last & low_nibbles) << 4;
    qs[1] = (first >> 4 & low_nibbles) | (last & ~low_nibbles);
    for (int h = 0; h < 2; ++h) {
        const uint8_t d = x->d[2 * half + h];
        block[h * ROWS + row] = (char)(d == 0x7f ? 0 : d & 0x7f); /* as agk_half_of_e4m3 reads it */
    }
    put_words(data, row, qs, sizeof qs);
}

/* A block of 32 of one row; `at`: which one of a larger block of the file. */
static void put_32(int type, const char *from, int at, int row, char *block, char *data)
{
    const void *x = from;
    switch (type) {
    case AGK_Q8_0: put_q8_0(x, row, block, data); break;
    case AGK_Q4_0:
    case AGK_IQ4_NL: {
        const agk_block_q4_0 *b = x;
        put_half(block, 0, row, b->d);
        put_words(data, row, b->qs, sizeof b->qs);
        break;
    }
    case AGK_MXFP4: {
        const agk_block_mxfp4 *b = x;
        block[row] = (char)b->e;
        put_words(data, row, b->qs, sizeof b->qs);
        break;
    }
    case AGK_NVFP4: put_nvfp4(x, at, row, block, data); break;
    case AGK_Q4_1: {
        const agk_block_q4_1 *b = x;
        put_half(block, 0, row, b->d);
        put_half(block, 1, row, b->m);
        put_words(data, row, b->qs, sizeof b->qs);
        break;
    }
    case AGK_Q5_0: {
        const agk_block_q5_0 *b = x;
        put_half(block, 0, row, b->d);
        put_fifth_bits(b->qh, row, data);
        put_words(data + VECTOR, row, b->qs, sizeof b->qs);
        break;
    }
    case AGK_Q5_1: {
        const agk_block_q5_1 *b = x;
        put_half(block, 0, row, b->d);
        put_half(block, 1, row, b->m);
        put_fifth_bits(b->qh, row, data);
        put_words(data + VECTOR, row, b->qs, sizeof b->qs);
        break;
    }
    default: break;
    }
}

static code_type code_type_of(int type)
{
    switch (type) {
#define AGK_PACKED(NAME, ...) \
    case AGK_##NAME: return NAME;
#include "table/types.def"
    default: return Q8_0;
    }
}

/* The bits of a row in n masks of 16 rows, four at a time, from every `step`-th bit of `third`. Rows follow each other,
 * and bits of rows that do not exist are 0. */
AGK_INLINE void put_masks(char *masks, int n, int step, int row, uint32_t third)
{
    for (int i = 0; i < n; i += 4, masks += 8) {
        uint64_t rows = 0;
        if (row > 0) memcpy(&rows, masks, sizeof rows);
        for (int j = 0; j < 4; ++j) rows |= (uint64_t)(third >> step * (i + j) & 1) << (16 * j + row);
        memcpy(masks, &rows, sizeof rows);
    }
}

/* A block of 256 of one row of a codebook, or of -1, 0 and 1. */
static void put_book(code_type t, const void *x, int row, char *block, char *data)
{
    const int pairs = !has_nibble_scales(t) ? 0 : scale_per_16(t) ? 8 : 4;
    agk_packed_bits bits;
    put_half(block, 0, row, agk_packed_book(t, x, &bits));
    for (int i = 0; i < pairs; ++i) {
        block[(2 + i) * ROWS + row] = (char)(bits.scales[2 * i] | bits.scales[2 * i + 1] << 4);
    }
    if (t == IQ1_S) put_masks(block + mask_at(IQ1_S, 0), 8, 4, row, bits.third);
    if (t == IQ1_M) put_masks(block + mask_at(IQ1_M, 0), 32, 1, row, bits.third);
    if (nibbles_of_256(t))
        put_words(data, row, bits.low, sizeof bits.low);
    else
        put_bits(bits_of(t), bits.low, bits.high, row, data);
}

/* A block of 256 of one row. */
static void put_256(int type, const char *from, int at, int row, char *block, char *data)
{
    (void)at;
    const void *x = from;
    switch (type) {
    case AGK_Q2_K: {
        const agk_block_q2_k *b = x;
        put_half(block, 0, row, b->d);
        put_half(block, 1, row, b->m);
        for (int j = 0; j < 16; ++j) block[4 * ROWS + j * ROWS + row] = (char)b->scales[j];
        put_bits(Q2_K, b->qs, NULL, row, data);
        break;
    }
    case AGK_Q3_K: {
        const agk_block_q3_k *b = x;
        put_half(block, 0, row, b->d);
        for (int j = 0; j < 16; ++j) {
            const int low = b->scales[j % 8] >> (j < 8 ? 0 : 4) & 15, high = b->scales[8 + j % 4] >> (2 * (j / 4)) & 3;
            block[2 * ROWS + j * ROWS + row] = (char)((low | high << 4) - 32);
        }
        put_bits(Q3_K, b->qs, b->hmask, row, data);
        break;
    }
    case AGK_Q4_K: {
        const agk_block_q4_k *b = x;
        put_half(block, 0, row, b->d);
        put_half(block, 1, row, b->m);
        put_q4_k(b->scales, row, block);
        put_bits(Q4_K, b->qs, NULL, row, data);
        break;
    }
    case AGK_Q5_K: {
        const agk_block_q5_k *b = x;
        put_half(block, 0, row, b->d);
        put_half(block, 1, row, b->m);
        put_q4_k(b->scales, row, block);
        put_bits(Q5_K, b->qs, b->qh, row, data);
        break;
    }
    case AGK_Q6_K: {
        const agk_block_q6_k *b = x;
        put_half(block, 0, row, b->d);
        for (int j = 0; j < 16; ++j) block[2 * ROWS + j * ROWS + row] = (char)b->scales[j];
        put_bits(Q6_K, b->ql, b->qh, row, data);
        break;
    }
    case AGK_IQ4_XS: {
        const agk_block_iq4_xs *b = x;
        put_half(block, 0, row, b->d);
        for (int j = 0; j < 8; ++j) {
            const int low = b->scales_l[j / 2] >> (4 * (j % 2)) & 15, high = b->scales_h >> (2 * j) & 3;
            block[2 * ROWS + j * ROWS + row] = (char)((low | high << 4) - 32);
        }
        put_words(data, row, b->qs, sizeof b->qs);
        break;
    }
    default: put_book(code_type_of(type), x, row, block, data);
    }
}

/* Half a panel of matrix tiles, behind the flag that says whether all numbers have terms. All variants produce the
 * same bytes. */
static void put_terms(int type, const char *rows, size_t stride, int64_t n, int64_t k, char *out)
{
    enum { MOST = 256 };
    const uint32_t cpu = agk_cpu_features();
    const size_t element = agk_traits(type)->type_size, tiles = agk_packed_layout_of(type)->bytes;
    bool fine = true;
    memset(out, 0, AGK_PACKED_HEAD);
    char *to = out + AGK_PACKED_HEAD;
    if (type == AGK_BF16) AGK_PICK(mm_tiles_rows_bf16, cpu)(k, n, rows, stride, to);
    if (type == AGK_F32) fine = AGK_PICK(mm_pairs_columns, cpu)(3, k, n, rows, stride, to);
    for (int64_t i = 0; i < k && type == AGK_F16; i += MOST, to += MOST / AGK_PANEL_K * tiles) {
        float x[ROWS][MOST];
        const int64_t some = k - i < MOST ? k - i : MOST;
        for (int64_t r = 0; r < n; ++r)
            agk_reader(type, cpu)(rows + (size_t)r * stride + (size_t)i * element, x[r], some);
        fine = AGK_PICK(mm_pairs_columns, cpu)(2, some, n, x, sizeof x[0], to) && fine;
    }
    *out = (char)fine;
}

void agk_mm_packed_group_scalar(int type, const char *rows, size_t stride, int64_t n, int64_t k, char *out)
{
    const agk_packed_layout *layout = agk_packed_layout_of(type);
    if (layout->sums == AGK_NO_SUMS) {
        put_terms(type, rows, stride, n, k, out);
        return;
    }
    void (*put)(int, const char *, int, int, char *, char *) = layout->k == 256 ? put_256 : put_32;
    const int64_t block = agk_traits(type)->blck_size; /* in the file: 64 of nvfp4, which has packed blocks of 32 */
    if (n < ROWS) memset(out, 0, agk_packed_group_bytes(layout, k));
    for (int64_t i = 0; i < k; i += layout->k, out += layout->bytes) {
        const char *from = rows + agk_row_size(type, i / block * block);
        const int at = (int)(i % block / layout->k);
        for (int row = 0; row < n; ++row) put(type, from + (size_t)row * stride, at, row, out, out + layout->data);
    }
}

/* -- columns -------------------------------------------------------------------------------------------------- */

/* Both sums of half `i` of 64 elements, `step` bytes apart. */
static void put_sums(const agk_packed_layout *layout, const agk_mm_col_q8 *x, int i, char *to, int64_t step)
{
    const bool minimum = layout->sums == AGK_MINIMUM_32 || layout->sums == AGK_MINIMUM_16;
    const int32_t *start = x->start + 8 * i; /* -128 times the sums of 4 */
    int32_t sum[2] = {start[0] + start[1] + start[2] + start[3], start[4] + start[5] + start[6] + start[7]};
    if (!agk_packed_halves(layout)) sum[0] += sum[1], sum[1] = 0;
    for (int h = 0; h < 2; ++h) {
        const int32_t s = sum[h] / -128, add = -layout->offset * s;
        const float factor = x->d[i] * (float)s;
        memcpy(to + h * step, minimum ? (const void *)&factor : (const void *)&add, 4);
    }
}

/* What sums of words begin with, of half `i` of 64 elements, `step` bytes apart. */
static void put_sums_of_words(const agk_packed_layout *layout, const agk_mm_col_q8 *x, int i, char *to, int64_t step)
{
    const int32_t offset = layout->sums == AGK_OFFSET_16 ? layout->offset : 0;
    for (int h = 0; h < 2; ++h) {
        const int8_t *q = x->q + AGK_MM_BLOCK * i + 16 * h;
        int32_t first = 0, last = 0;
        for (int e = 0; e < 16 && offset != 0; e += 4) {
            first += q[e] + q[e + 1];
            last += q[e + 2] + q[e + 3];
        }
        const uint16_t words[2] = {(uint16_t)(offset * first), (uint16_t)(offset * last)};
        memcpy(to + h * step, words, sizeof words);
    }
}

void agk_packed_columns(const agk_packed_layout *layout, int64_t n, int64_t width, int64_t k, const char *columns,
                        size_t stride, char *out)
{
    for (int64_t i = 0; i < k / AGK_MM_BLOCK; ++i) {
        float *d = (float *)(void *)out;
        char *sums = out + width * 4, *q = out + 12 * width, *words = out + AGK_PACKED_WORDS_AT * width;
        if (n < width) memset(out, 0, (size_t)width * AGK_PACKED_COLUMN);
        for (int64_t j = 0; j < n; ++j) {
            const agk_mm_col_q8 *x = (const agk_mm_col_q8 *)(const void *)(columns + (size_t)j * stride) + i / 2;
            d[j] = x->d[i & 1];
            put_sums(layout, x, (int)(i & 1), sums + 4 * j, 4 * width);
            put_sums_of_words(layout, x, (int)(i & 1), words + 4 * j, 4 * width);
            memcpy(q + j * AGK_MM_BLOCK, x->q + (i & 1) * AGK_MM_BLOCK, AGK_MM_BLOCK);
        }
        out += width * AGK_PACKED_COLUMN;
    }
}

void agk_packed_tiles(const agk_packed_layout *layout, int64_t n, int64_t width, int64_t k, const char *columns,
                      size_t stride, char *out)
{
    const int64_t per_scale = agk_packed_halves(layout) ? 16 : 32, per_tile = per_scale / 4;
    const size_t bytes = agk_packed_unit_bytes(layout, width);
    memset(out, 0, agk_packed_tiles_bytes(layout, width, k));
    for (int64_t i = 0; i < k; i += AGK_PACKED_UNIT, out += bytes) {
        for (int64_t j = 0; j < n; ++j) {
            const agk_mm_col_q8 *x =
                (const agk_mm_col_q8 *)(const void *)(columns + (size_t)j * stride) + i / AGK_PACKED_UNIT;
            char *tile = out + 24 * width + j / per_tile * AGK_PACKED_TILE;
            for (int half = 0; half < 2 && i + half * AGK_MM_BLOCK < k; ++half) {
                memcpy(out + 4 * (half * width + j), &x->d[half], 4);
                put_sums(layout, x, half, out + 4 * ((2 + 2 * half) * width + j), 4 * width);
                for (int64_t e = half * AGK_MM_BLOCK; e < (half + 1) * AGK_MM_BLOCK; e += per_scale) {
                    const int64_t line = e / per_scale * per_tile + j % per_tile;
                    memcpy(tile + line * AGK_PACKED_UNIT + e, x->q + e, (size_t)per_scale);
                }
            }
        }
    }
}

void agk_mm_packed_columns_scalar(const agk_packed_layout *layout, int64_t n, int64_t width, int64_t k,
                                  const char *columns, size_t stride, char *out)
{
    agk_mm_col_q8 unit[AGK_PACKED_MOST];
    for (int64_t i = 0; i < k; i += AGK_PACKED_UNIT, out += agk_packed_unit_bytes(layout, width)) {
        const int64_t rest = k - i < AGK_PACKED_UNIT ? k - i : AGK_PACKED_UNIT;
        for (int64_t j = 0; j < n; ++j) {
            agk_mm_columns_q8_scalar(columns + (size_t)j * stride + (size_t)i * sizeof(float), &unit[j], rest);
        }
        agk_packed_tiles(layout, n, width, rest, (const char *)unit, sizeof *unit, out);
    }
}
