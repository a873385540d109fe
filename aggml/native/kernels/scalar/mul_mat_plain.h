/* Shared by the plain C kernels of blocks and dots. Everything here is static inline. */
#ifndef AGK_SCALAR_MUL_MAT_PLAIN_H
#define AGK_SCALAR_MUL_MAT_PLAIN_H

#include "formats/quant.h"
#include "kernels/mul_mat.h"
#include "table/kernel_types.h"

static inline const void *at(const void *base, int64_t i, size_t stride)
{
    return (const char *)base + (size_t)i * stride;
}

static inline float *column(const agk_mm_block *block, int64_t i)
{
    return (float *)(void *)((char *)block->c + (size_t)i * block->ldc);
}

static inline float bf16(uint16_t bits)
{
    float value;
    const uint32_t wide = (uint32_t)bits << 16;
    memcpy(&value, &wide, sizeof value);
    return value;
}

#endif
