// soft_max over rows of f32, with scale, mask (f16 or f32), ALiBi and sinks. A block for each row. Not here: its
// gradient (backward.cu).
// computes: soft_max by soft_max of 3 operands, for each row
#include "common.cuh"

// src: a, mask, sinks
KERNEL(soft_max, 256, Node<3>)
{
    const Tensor &a = n.src[0], &m = n.src[1], &sinks = n.src[2];
    const i64 rows = row_count(n.dst), width = n.dst.ne[0];
    const float scale = param(n.p, 0), max_bias = param(n.p, 1);
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const Index i = row_index(n.dst, row);
        const float *x = (const float *)(a.data + at(a, i));
        float *y = (float *)(n.dst.data + at(n.dst, i));
        const char *mask = m.data == 0 ? 0 : m.data + at(m, 0, i.i1, modulo(i.i2, m.ne[2]), modulo(i.i3, m.ne[3]));
        const float slope = max_bias > 0.0f ? alibi_slope(i.i2, a.ne[2], max_bias) : 1.0f;
        const float sink = sinks.data == 0 ? -INF : f32_at(sinks.data + i.i2 * sinks.nb[0]);
        float most = sink;
        for (i64 e = threadIdx.x; e < width; e += blockDim.x) {
            const float v = x[e] * scale + (mask != 0 ? slope * load(m.type, mask + e * m.nb[0]) : 0.0f);
            most = v > most ? v : most;
        }
        most = block_max(most);
        float sum = 0.0f;
        for (i64 e = threadIdx.x; e < width; e += blockDim.x) {
            const float v = x[e] * scale + (mask != 0 ? slope * load(m.type, mask + e * m.nb[0]) : 0.0f);
            sum += expf(v - most);
        }
        sum = block_sum(sum);
        if (sink > -INF) sum += expf(sink - most);
        for (i64 e = threadIdx.x; e < width; e += blockDim.x) {
            const float v = x[e] * scale + (mask != 0 ? slope * load(m.type, mask + e * m.nb[0]) : 0.0f);
            y[e] = expf(v - most) * (1.0f / sum);
        }
    }
}
