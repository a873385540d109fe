// Functions of one operand: the ops abs .. leaky_relu of ops.def, on f32, f16 and bf16 with any strides.
#include "gelu.cuh"

DEV float hardsigmoid(float x)
{
    return fminf(1.0f, fmaxf(0.0f, (x + 3.0f) / 6.0f));
}

DEV float apply(i64 op, const int *p, float v)
{
    switch (op) {
    case OP_abs: return fabsf(v);
    case OP_sgn: return v > 0.0f ? 1.0f : v < 0.0f ? -1.0f : 0.0f;
    case OP_neg: return -v;
    case OP_step: return v > 0.0f ? 1.0f : 0.0f;
    case OP_tanh: return tanhf(v);
    case OP_elu: return v > 0.0f ? v : expm1f(v);
    case OP_relu: return v > 0.0f ? v : 0.0f;
    case OP_sigmoid: return 1.0f / (1.0f + expf(-v));
    case OP_gelu: return gelu(v);
    case OP_gelu_quick: return gelu_quick(v);
    case OP_gelu_erf: return 0.5f * v * erfcf(v * -0.70710678f);
    case OP_silu: return v / (1.0f + expf(-v));
    case OP_exp: return expf(v);
    case OP_expm1: return expm1f(v);
    case OP_softplus: return v > 20.0f ? v : log1pf(expf(v));
    case OP_hardswish: return v * hardsigmoid(v);
    case OP_hardsigmoid: return hardsigmoid(v);
    case OP_floor: return floorf(v);
    case OP_ceil: return ceilf(v);
    case OP_round: return roundf(v);
    case OP_trunc: return truncf(v);
    case OP_log: return logf(v);
    case OP_sin: return sinf(v);
    case OP_cos: return cosf(v);
    case OP_sqr: return v * v;
    case OP_sqrt: return sqrtf(v);
    case OP_clamp: { // NaN gives the maximum
        const float least = param(p, 0), most = param(p, 1);
        return v < most ? (v > least ? v : least) : (most > least ? most : least);
    }
    case OP_leaky_relu: return v > 0.0f ? v : v < 0.0f ? v * param(p, 0) : 0.0f;
    default: { // xielu
        const float beta = param(p, 3);
        return v > 0.0f ? param(p, 2) * v * v + beta * v
                        : (expm1f(fminf(v, param(p, 4))) - v) * param(p, 1) + beta * v;
    }
    }
}

// Applies the op to rows. A thread has 4 elements, one block apart: its loads are in flight together and coalesced.
template <class T> DEV void walk(const Node<1> &n)
{
    const i64 i0 = (i64)blockIdx.x * (4 * blockDim.x) + threadIdx.x;
    const i64 rows = row_count(n.dst);
    for (i64 row = (i64)blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += (i64)gridDim.y * blockDim.y) {
        const Index i = row_index(n.dst, row);
        const char *x = n.src[0].data + at(n.src[0], i);
        char *y = n.dst.data + at(n.dst, i);
        float v[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const i64 e = i0 + k * blockDim.x;
            v[k] = e < n.dst.ne[0] ? to_float(*(const T *)(x + e * n.src[0].nb[0])) : 0.0f;
        }
#pragma unroll 1
        for (int k = 0; k < 4; ++k) {
            const i64 e = i0 + k * blockDim.x;
            const float r = apply(n.op, n.p, v[0]);
            v[0] = v[1], v[1] = v[2], v[2] = v[3]; // constant indices keep v in registers
            if (e < n.dst.ne[0]) from_float(r, (T *)(y + e * n.dst.nb[0]));
        }
    }
}

KERNEL(unary_f32, 256, Node<1>) { walk<float>(n); }
KERNEL(unary_f16, 256, Node<1>) { walk<half_t>(n); }
KERNEL(unary_bf16, 256, Node<1>) { walk<bf16_t>(n); }
