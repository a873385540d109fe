// GELU by a tanh and by a sigmoid, for unary.cu and glu.cu.
#pragma once
#include "common.cuh"

DEV float gelu(float x)
{
    if (x <= -10.0f) return 0.0f;
    if (x >= 10.0f) return x;
    return x / (1.0f + expf(-2.0f * 0.79788456f * x * (1.0f + 0.044715f * x * x)));
}

// x beyond the range of f16 counts as infinite, because ggml looks the function up in a table indexed by f16.
DEV float gelu_quick(float x)
{
    if (fabsf(x) >= 65520.0f) x = copysignf(INF, x);
    return x / (1.0f + expf(-1.702f * x));
}
