// Reads elements of any type as f32, by the number of the type. This is a switch of 27 cases: not for fast kernels.
#pragma once
#include "quant.cuh"

#define CASE_0(T) // a plain type
#define CASE_16(T) CASE(T)
#define CASE_32(T) CASE(T)
#define AGK_TYPE(NAME, id, symbol, name, numpy, block, size, alignment, group, dot, reads, writes, fits, ns, scale, \
                 minimum) \
    CASE_##scale(NAME)

DEV bool is_quantized(i64 type)
{
    switch (type) {
#define CASE(T) case T:
#include "types.def"
#undef CASE
        return true;
    default: return false;
    }
}

// Group g (32 elements) of a row of a quantized type, as f32.
DEV_CALL void unpack_any(i64 type, const char *row, i64 g, float *out)
{
    Group o;
    switch (type) {
#define CASE(T) \
    case T: unpack_row<T>(row, g, o); break;
#define AGK_TYPE(NAME, id, symbol, name, numpy, block, size, alignment, group, dot, reads, writes, fits, ns, scale, \
                 minimum) \
    CASE_##scale(NAME)
#include "types.def"
#undef CASE
    default: return;
    }
#pragma unroll
    for (int e = 0; e < 32; ++e) out[e] = __fadd_rn(__fmul_rn(code_at(o, e), o.d[e / 16]), o.m[e / 16]);
}
