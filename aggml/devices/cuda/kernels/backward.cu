// Gradients: silu_back for each element; rms_norm_back, soft_max_back, cross_entropy_loss_back for each row.
// computes: silu_back by silu_back of 2 operands, for each element
// computes: rms_norm_back by rms_norm_back of 2 operands, for each row
// computes: soft_max_back by soft_max_back of 2 operands, for each row
// computes: cross_entropy_loss_back by cross_entropy_loss_back of 3 operands, for each row
#include "common.cuh"

KERNEL(silu_back, 256, Node<2>)
{
    const i64 all = count(n.dst);
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const Index i = element_index(n.dst, e);
        const float g = load(n.dst.type, n.src[0].data + at(n.src[0], i));
        const float x = load(n.dst.type, n.src[1].data + at(n.src[1], i));
        const float s = 1.0f / (1.0f + expf(-x));
        store(n.dst.type, n.dst.data + at(n.dst, i), g * s * (1.0f + x * (1.0f - s)));
    }
}

// src: gradient, x
KERNEL(rms_norm_back, 256, Node<2>)
{
    const i64 rows = row_count(n.dst), width = n.dst.ne[0];
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index i = row_index(n.dst, row);
        const float *g = (const float *)(n.src[0].data + at(n.src[0], i));
        const float *x = (const float *)(n.src[1].data + at(n.src[1], i));
        float *y = (float *)(n.dst.data + at(n.dst, i));
        float square = 0.0f, dot = 0.0f;
        for (i64 e = threadIdx.x; e < width; e += blockDim.x) {
            square += x[e] * x[e];
            dot += x[e] * g[e];
        }
        square = block_sum(square);
        dot = block_sum(dot);
        const float mean = square / (float)width + param(n.p, 0);
        const float scale = 1.0f / sqrtf(mean), along = -dot / (mean * (float)width);
        for (i64 e = threadIdx.x; e < width; e += blockDim.x) y[e] = (x[e] * along + g[e]) * scale;
    }
}

// src: gradient, result of soft_max
KERNEL(soft_max_back, 256, Node<2>)
{
    const i64 rows = row_count(n.dst), width = n.dst.ne[0];
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index i = row_index(n.dst, row);
        const float *g = (const float *)(n.src[0].data + at(n.src[0], i));
        const float *s = (const float *)(n.src[1].data + at(n.src[1], i));
        float *y = (float *)(n.dst.data + at(n.dst, i));
        float dot = 0.0f;
        for (i64 e = threadIdx.x; e < width; e += blockDim.x) dot += s[e] * g[e];
        dot = block_sum(dot);
        for (i64 e = threadIdx.x; e < width; e += blockDim.x) y[e] = (g[e] - dot) * s[e] * param(n.p, 0);
    }
}

// src: gradient of the loss, logits, labels
KERNEL(cross_entropy_loss_back, 256, Node<3>)
{
    const i64 rows = row_count(n.dst), width = n.dst.ne[0];
    const float times = f32_at(n.src[0].data) / (float)rows;
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index i = row_index(n.dst, row);
        const float *x = (const float *)(n.src[1].data + at(n.src[1], i));
        const float *label = (const float *)(n.src[2].data + at(n.src[2], i));
        float *y = (float *)(n.dst.data + at(n.dst, i));
        float most = -INF, sum = 0.0f;
        for (i64 e = threadIdx.x; e < width; e += blockDim.x) most = x[e] > most ? x[e] : most;
        most = block_max(most);
        for (i64 e = threadIdx.x; e < width; e += blockDim.x) sum += expf(x[e] - most);
        sum = block_sum(sum);
        for (i64 e = threadIdx.x; e < width; e += blockDim.x) y[e] = (expf(x[e] - most) / sum - label[e]) * times;
    }
}
