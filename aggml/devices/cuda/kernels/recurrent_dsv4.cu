// lightning_indexer (which keys a query should see) and hyper-connections: dsv4_hc_comb, dsv4_hc_pre, dsv4_hc_post.
#include "any.cuh"

DEV const float *row_f32(const Tensor &t, i64 i1, i64 i2, i64 i3)
{
    return (const float *)(t.data + i1 * t.nb[1] + i2 * t.nb[2] + i3 * t.nb[3]);
}

// src q [d, h, t, s], k [d, 1, n, s], weights [h, t, 1, s], mask f16 [n, t, 1, s'] -> [n, t, 1, s]. A block for each
// key, which it holds as f32; a warp for each query.
KERNEL(lightning_indexer, 128, Node<4>)
{
    SHARED(float, key);
    const Tensor &q = n.src[0], &k = n.src[1], &w = n.src[2], &mask = n.src[3];
    const i64 d = q.ne[0], units = k.ne[2] * q.ne[3];
    const int lane = threadIdx.x & 31;
    for (i64 unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const i64 i = unit % k.ne[2], s = unit / k.ne[2];
        const char *from = k.data + i * k.nb[2] + s * k.nb[3];
        __syncthreads();
        if (is_quantized(k.type)) {
            for (i64 g = threadIdx.x; g < d / 32; g += blockDim.x) unpack_any(k.type, from, g, key + 32 * g);
        } else {
            for (i64 e = threadIdx.x; e < d; e += blockDim.x) key[e] = load(k.type, from + e * k.nb[0]);
        }
        __syncthreads();
        for (i64 t = threadIdx.x >> 5; t < q.ne[2]; t += blockDim.x >> 5) {
            const float *weights = row_f32(w, t, 0, s);
            float score = 0.0f;
            for (i64 h = 0; h < q.ne[1]; ++h) {
                const float *query = row_f32(q, h, t, s);
                float dot = 0.0f;
                for (i64 e = lane; e < d; e += 32) dot += query[e] * key[e];
                score += fmaxf(warp_sum(dot), 0.0f) * weights[h];
            }
            const char *m = mask.data + i * mask.nb[0] + t * mask.nb[1] + s % mask.ne[3] * mask.nb[3];
            if (lane == 0) *(float *)(n.dst.data + at(n.dst, i, t, 0, s)) = score + load(mask.type, m);
        }
    }
}

DEV void divide_lines(float *c, i64 size, i64 along, i64 across, float eps)
{
    for (i64 i = 0; i < size; ++i) {
        float sum = eps;
        for (i64 j = 0; j < size; ++j) sum += c[i * across + j * along];
        for (i64 j = 0; j < size; ++j) c[i * across + j * along] /= sum;
    }
}

// src mixes [(2 + n) n, t], scale [3], base -> [n, n, t]: a softmax of each row, then columns and rows are divided by
// their sums in turn (Sinkhorn). A thread for each token; n is at most 16.
KERNEL(dsv4_hc_comb, 64, Node<3>)
{
    const Tensor &mixes = n.src[0], &base = n.src[2];
    const i64 size = n.dst.ne[0];
    const float scale = f32_at(n.src[1].data + 2 * n.src[1].nb[0]), eps = param(n.p, 0);
    for (i64 t = global_thread(); t < n.dst.ne[2]; t += global_threads()) {
        float *c = (float *)n.dst.data + t * size * size;
        for (i64 i = 0; i < size; ++i) {
            float *row = c + i * size, most = -INF, sum = 0.0f;
            for (i64 j = 0; j < size; ++j) {
                const i64 place = 2 * size + i * size + j;
                row[j] = f32_at(mixes.data + place * mixes.nb[0] + t * mixes.nb[1]) * scale +
                         f32_at(base.data + place * base.nb[0]);
                if (row[j] > most) most = row[j];
            }
            for (i64 j = 0; j < size; ++j) sum += row[j] = expf(row[j] - most);
            for (i64 j = 0; j < size; ++j) row[j] = row[j] / sum + eps;
        }
        divide_lines(c, size, size, 1, eps);
        for (int i = 1; i < n.p[1]; ++i) {
            divide_lines(c, size, 1, size, eps);
            divide_lines(c, size, size, 1, eps);
        }
    }
}

// src x [d, n, t], weights [n, t] or, if it is gated, gate [d, n, t] -> [d, t]
KERNEL(dsv4_hc_pre, 256, Node<2>)
{
    const i64 all = count(n.dst), d = n.src[0].ne[0];
    const float scale = param(n.p, 0);
    const bool gated = n.p[1] != 0;
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const i64 i = e % d, t = e / d;
        float sum = 0.0f;
        for (i64 h = 0; h < n.src[0].ne[1]; ++h) {
            const float w =
                gated ? 1.0f / (1.0f + expf(-row_f32(n.src[1], h, t, 0)[i])) : row_f32(n.src[1], t, 0, 0)[h];
            sum += row_f32(n.src[0], h, t, 0)[i] * w;
        }
        ((float *)n.dst.data)[e] = scale * sum;
    }
}

// src x [d, t], residual [d, n, t], post [n, t], comb [n, n, t] or nothing -> [d, n, t]
KERNEL(dsv4_hc_post, 256, Node<4>)
{
    const Tensor &residual = n.src[1];
    const i64 all = count(n.dst), d = residual.ne[0], streams = residual.ne[1];
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const i64 i = e % d, h = e / d % streams, t = e / d / streams;
        float sum = row_f32(n.src[2], t, 0, 0)[h] * row_f32(n.src[0], t, 0, 0)[i];
        if (n.src[3].data == 0) sum += row_f32(residual, h, t, 0)[i];
        for (i64 j = 0; n.src[3].data != 0 && j < streams; ++j)
            sum += row_f32(n.src[3], j, t, 0)[h] * row_f32(residual, j, t, 0)[i];
        ((float *)n.dst.data)[e] = sum;
    }
}
