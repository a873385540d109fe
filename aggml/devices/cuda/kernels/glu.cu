// Gated units: f(x) * g, f32 and f16. src: x and g, which are two tensors or the halves of each row.
#include "gelu.cuh"

// NaN passes.
DEV float limited(float alpha, float limit, float offset, float x, float g)
{
    const float v = limit < x ? limit : x, w = limit < g ? limit : g;
    return v / (1.0f + expf(-alpha * v)) * ((w < -limit ? -limit : w) + offset);
}

DEV float gated(i64 op, const int *p, float x, float g)
{
    switch (op) {
    case OP_reglu: return (x > 0.0f ? x : 0.0f) * g;
    case OP_geglu: return gelu(x) * g;
    case OP_swiglu: return x / (1.0f + expf(-x)) * g;
    case OP_geglu_erf: return 0.5f * x * erfcf(x * -0.70710678f) * g;
    case OP_swiglu_oai: return limited(param(p, 2), param(p, 3), 1.0f, x, g);
    case OP_swiglu_clamp: return limited(1.0f, param(p, 3), 0.0f, x, g);
    default: return gelu_quick(x) * g;
    }
}

template <class T> DEV void walk(const Node<2> &n)
{
    const i64 i0 = (i64)blockIdx.x * (4 * blockDim.x) + threadIdx.x, width = n.dst.ne[0];
    const i64 rows = row_count(n.dst);
    for (i64 row = (i64)blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += (i64)gridDim.y * blockDim.y) {
        const Index i = row_index(n.dst, row);
        const char *x = n.src[0].data + at(n.src[0], i), *g = n.src[1].data + at(n.src[1], i);
        char *y = n.dst.data + at(n.dst, i);
        float v[4], w[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const i64 e = i0 + k * blockDim.x;
            v[k] = e < width ? to_float(*(const T *)(x + e * n.src[0].nb[0])) : 0.0f;
            w[k] = e < width ? to_float(*(const T *)(g + e * n.src[1].nb[0])) : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const i64 e = i0 + k * blockDim.x;
            const float r = gated(n.op, n.p, v[k], w[k]);
            if (e < width) from_float(r, (T *)(y + e * n.dst.nb[0]));
        }
    }
}

KERNEL(glu_f32, 256, Node<2>)
{
    walk<float>(n);
}
KERNEL(glu_f16, 256, Node<2>)
{
    walk<half_t>(n);
}
