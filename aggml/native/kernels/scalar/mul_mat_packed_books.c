/* Codes and scales of iq1, iq2, iq3, tq1_0 and tq2_0 for packed weights: 8 elements at a time, as the bytes of a word.
 *
 * Packing reads each block once, 0.2 to 0.5 ns an element, where types that are only moved take 0.1. Not here:
 * the codebooks (formats/quant_iq_grid.c), values as floats (formats/). */
#include <string.h>

#include "formats/blocks.h"
#include "formats/blocks_iq.h"
#include "formats/quant_iq_grid.h"

#include "mul_mat_packed_books.h"

#define EACH_BYTE UINT64_C(0x0101010101010101)

static uint64_t load(const void *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static void put(uint8_t *codes, uint64_t word)
{
    memcpy(codes, &word, sizeof word);
}

/* Byte i of the result is bit i of `bits`. */
static uint64_t spread(unsigned bits)
{
    const uint64_t one_bit = bits * EACH_BYTE & UINT64_C(0x8040201008040201);
    return (one_bit + 0x7f * EACH_BYTE) >> 7 & EACH_BYTE;
}

/* Magnitudes 8, 25, 43 are 0, 1, 2; bit 2 is the sign. */
static uint64_t iq2_codes(const uint8_t *point, unsigned signs)
{
    return (load(point) >> 4 & 3 * EACH_BYTE) | spread(signs) << 2;
}

/* Magnitudes 4, 12 ... 62 (`shift` 3) or 1, 3 ... 15 (1) are 0 to 7; bit 3 is the sign. */
static uint64_t iq3_codes(const uint8_t *first, const uint8_t *second, int shift, unsigned signs)
{
    uint8_t both[8];
    memcpy(both, first, 4);
    memcpy(both + 4, second, 4);
    return (load(both) >> shift & 7 * EACH_BYTE) | spread(signs) << 3;
}

/* -1, 0, 1 are 0, 1, 2. */
static uint64_t iq1_codes(const int8_t *point)
{
    const uint64_t word = load(point), odd_bytes = word & EACH_BYTE, negative = word >> 1 & EACH_BYTE;
    return (odd_bytes ^ EACH_BYTE) | (odd_bytes & ~negative) << 1;
}

static uint16_t read_iq2_xxs(const agk_block_iq2_xxs *x, uint8_t *codes, uint8_t *scales)
{
    for (int g = 0; g < 8; ++g) {
        uint32_t word[2];
        memcpy(word, x->qs + 4 * g, sizeof word);
        scales[g] = (uint8_t)(word[1] >> 28);
        for (int k = 0; k < 4; ++k, codes += 8) {
            const uint8_t *point = agk_iq2_xxs_grid[word[0] >> 8 * k & 255];
            put(codes, iq2_codes(point, agk_iq_even_signs(word[1] >> 7 * k & 127)));
        }
    }
    return x->d;
}

static uint16_t read_iq2_xs(const agk_block_iq2_xs *x, uint8_t *codes, uint8_t *scales)
{
    for (int k = 0; k < 32; ++k, codes += 8)
        put(codes, iq2_codes(agk_iq2_xs_grid[x->qs[k] & 511], agk_iq_even_signs(x->qs[k] >> 9)));
    for (int j = 0; j < 16; ++j) scales[j] = (uint8_t)(x->scales[j / 2] >> 4 * (j & 1) & 15);
    return x->d;
}

static uint16_t read_iq2_s(const agk_block_iq2_s *x, uint8_t *codes, uint8_t *scales)
{
    for (int k = 0; k < 32; ++k, codes += 8) {
        const int point = x->qs[k] | (x->qh[k / 4] >> 2 * (k & 3) & 3) << 8;
        put(codes, iq2_codes(agk_iq2_s_grid[point], x->signs[k]));
    }
    for (int j = 0; j < 16; ++j) scales[j] = (uint8_t)(x->scales[j / 2] >> 4 * (j & 1) & 15);
    return x->d;
}

static uint16_t read_iq3_xxs(const agk_block_iq3_xxs *x, uint8_t *codes, uint8_t *scales)
{
    for (int g = 0; g < 8; ++g) {
        uint32_t word;
        memcpy(&word, x->scales_and_signs + 4 * g, sizeof word);
        scales[g] = (uint8_t)(word >> 28);
        for (int k = 0; k < 4; ++k, codes += 8) {
            const uint8_t *qs = x->qs + 8 * g + 2 * k;
            put(codes,
                iq3_codes(agk_iq3_xxs_grid[qs[0]], agk_iq3_xxs_grid[qs[1]], 3, agk_iq_even_signs(word >> 7 * k & 127)));
        }
    }
    return x->d;
}

static uint16_t read_iq3_s(const agk_block_iq3_s *x, uint8_t *codes, uint8_t *scales)
{
    for (int k = 0; k < 32; ++k, codes += 8) {
        const unsigned ninth = (unsigned)x->qh[k / 4] >> 2 * (k & 3);
        const unsigned first = x->qs[2 * k] | (ninth & 1) << 8, second = x->qs[2 * k + 1] | (ninth & 2) << 7;
        put(codes, iq3_codes(agk_iq3_s_grid[first], agk_iq3_s_grid[second], 1, x->signs[k]));
    }
    for (int j = 0; j < 8; ++j) scales[j] = (uint8_t)(x->scales[j / 2] >> 4 * (j & 1) & 15);
    return x->d;
}

/* The third bit: 1 if an eighth is subtracted, 0 if it is added. */
static uint16_t read_iq1_s(const agk_block_iq1_s *x, uint8_t *codes, uint8_t *scales, uint32_t *third)
{
    *third = 0;
    for (int k = 0; k < 32; ++k, codes += 8) {
        const unsigned h = x->qh[k / 4];
        scales[k / 4] = (uint8_t)(h >> 12 & 7);
        *third |= (uint32_t)(h >> 15) << k;
        put(codes, iq1_codes(agk_iq1_grid[x->qs[k] | (h >> 3 * (k & 3) & 7) << 8]));
    }
    return x->d;
}

static uint16_t read_iq1_m(const agk_block_iq1_m *x, uint8_t *codes, uint8_t *scales, uint32_t *third)
{
    *third = 0;
    uint16_t word[4];
    memcpy(word, x->scales, sizeof word);
    for (int k = 0; k < 32; ++k, codes += 8) {
        const unsigned h = (unsigned)x->qh[k / 2] >> 4 * (k & 1);
        *third |= (uint32_t)(h >> 3 & 1) << k;
        put(codes, iq1_codes(agk_iq1_grid[x->qs[k] | (h & 7) << 8]));
    }
    for (int j = 0; j < 16; ++j) scales[j] = (uint8_t)(word[j / 4] >> 3 * (j % 4) & 7);
    return (uint16_t)(word[0] >> 12 | (word[1] >> 8 & 0xf0) | (word[2] >> 4 & 0xf00) | (word[3] & 0xf000));
}

/* Digits of base 3, the first the highest: multiplied by 3, the next one moves above the byte. */
static void read_digits(int n_bytes, int n_digits, const uint8_t *in, uint8_t *codes)
{
    for (int i = 0; i < n_bytes; ++i) {
        unsigned rest = in[i];
        for (int digit = 0; digit < n_digits; ++digit) {
            codes[digit * n_bytes + i] = (uint8_t)(rest * 3 >> 8);
            rest = rest * 3 & 255;
        }
    }
}

static uint16_t read_tq1_0(const agk_block_tq1_0 *x, uint8_t *codes)
{
    read_digits(32, 5, x->qs, codes);
    read_digits(16, 5, x->qs + 32, codes + 160);
    read_digits(4, 4, x->qh, codes + 240);
    return x->d;
}

/* Eight bytes of `to` from those of each part of a half, a part 32 codes apart: `bits` of each, from bit `from` on. */
static void gather(const uint8_t *codes, int from, int bits, uint8_t *to)
{
    uint64_t word = 0;
    for (int part = 0; part < 4; ++part) {
        word |= (load(codes + 32 * part) >> from & ((1u << bits) - 1) * EACH_BYTE) << bits * part;
    }
    put(to, word);
}

/* The bits of 256 codes where q3_K has them, or the two bits of each where q2_K does. */
static void put_parts(const uint8_t codes[256], agk_packed_bits *out)
{
    for (int i = 0; i < 32; i += 8) {
        uint8_t first[8], second[8];
        gather(codes + i, 0, 2, out->low + i);
        gather(codes + 128 + i, 0, 2, out->low + 32 + i);
        gather(codes + i, 2, 1, first);
        gather(codes + 128 + i, 2, 1, second);
        put(out->high + i, load(first) | load(second) << 4);
    }
}

/* Nibbles: of 32 codes the last 16 lie above the first. */
static void put_nibbles(const uint8_t codes[256], agk_packed_bits *out)
{
    for (int i = 0; i < 128; i += 8) {
        const uint8_t *from = codes + i / 16 * 32 + i % 16;
        put(out->low + i, load(from) | load(from + 16) << 4);
    }
}

uint16_t agk_packed_book(code_type t, const void *block, agk_packed_bits *out)
{
    uint8_t codes[256];
    uint8_t *scales = out->scales;
    uint16_t d;
    switch (t) {
    case IQ2_XXS: d = read_iq2_xxs(block, codes, scales); break;
    case IQ2_XS: d = read_iq2_xs(block, codes, scales); break;
    case IQ2_S: d = read_iq2_s(block, codes, scales); break;
    case IQ3_XXS: d = read_iq3_xxs(block, codes, scales); break;
    case IQ3_S: d = read_iq3_s(block, codes, scales); break;
    case IQ1_S: d = read_iq1_s(block, codes, scales, &out->third); break;
    case IQ1_M: d = read_iq1_m(block, codes, scales, &out->third); break;
    case TQ1_0: d = read_tq1_0(block, codes); break;
    default: { /* tq2_0 lies as q2_K does */
        const agk_block_tq2_0 *x = block;
        memcpy(out->low, x->qs, sizeof x->qs);
        return x->d;
    }
    }
    if (nibbles_of_256(t))
        put_nibbles(codes, out);
    else
        put_parts(codes, out);
    return d;
}
