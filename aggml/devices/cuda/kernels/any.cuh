// Elements of any type as f32, by the number of the type. Not for what has to be fast: a switch of 27 cases.
#pragma once
#include "quant.cuh"

DEV bool is_quantized(i64 type)
{
    return type != F32 && type != F16 && type != BF16 && !(type >= I8 && type <= F64);
}

// Group g of a row of a quantized type.
DEV_CALL void unpack_any(i64 type, const char *row, i64 g, float *out)
{
    Group o;
    switch (type) {
#define CASE(T, elements, size, halves, mins) \
    case T: unpack_row<T>(row, g, o); break;
        QUANTIZED(CASE)
#undef CASE
    default: return;
    }
#pragma unroll
    for (int e = 0; e < 32; ++e) out[e] = __fadd_rn(__fmul_rn(code_at(o, e), o.d[e / 16]), o.m[e / 16]);
}
