/* Rows of quantized types for tests of their kernels: from random codes, or from any bits. */
#ifndef TEST_QUANTIZED_H
#define TEST_QUANTIZED_H

#include <ctype.h>
#include <string.h>

#include "formats/blocks_iq.h"
#include "check.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat_bytes.h"

enum { N = 768 };

/* the symbol: prefix, the type's name in lower case, suffix */
static inline const char *kernel_of(const char *prefix, int type, const char *suffix)
{
    static char name[64];
    snprintf(name, sizeof name, "%s%s%s", prefix, agk_traits(type)->name, suffix);
    for (char *c = name; *c != '\0'; ++c) *c = (char)tolower(*c);
    return name;
}

static inline uint8_t *random_bytes(rng *r, size_t size)
{
    uint8_t *bytes = malloc(size);
    CHECK(bytes != NULL);
    for (size_t i = 0; i < size; ++i) bytes[i] = (uint8_t)rng_next(r);
    return bytes;
}

static inline float random_float(rng *r)
{
    return (float)rng_below(r, 2001) / 1000.0f - 1.0f;
}

/* A row of random codes, with scales d between 1 and 2; for types whose quantizers are slow. */
static inline void random_row(rng *r, int type, char *row)
{
    const size_t size = agk_row_size(type, 256);
    for (char *x = row; x < row + agk_row_size(type, N); x += size) {
        const uint16_t d = (uint16_t)(0x3c00 + rng_below(r, 0x400));
        for (size_t i = 0; i < size; ++i) x[i] = (char)rng_next(r);
        if (type == AGK_IQ1_M) {
            agk_block_iq1_m block;
            memcpy(&block, x, sizeof block);
            for (int i = 0; i < 4; ++i) {
                block.scales[2 * i + 1] = (uint8_t)((block.scales[2 * i + 1] & 15) | (d >> 4 * i & 15) << 4);
            }
            memcpy(x, &block, sizeof block);
        } else {
            memcpy(type == AGK_TQ1_0 || type == AGK_TQ2_0 ? x + size - 2 : x, &d, sizeof d);
        }
    }
}

/* The codebook types. Their columns never come from a tensor of q8_0. */
static inline bool is_codebook(int type)
{
    const agk_code_traits t = agk_code_traits_of(type);
    return t.wide && type != AGK_IQ4_XS && !(type >= AGK_Q2_K && type <= AGK_Q6_K);
}

#endif
