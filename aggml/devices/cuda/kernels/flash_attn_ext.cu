// flash_attn_ext without tiles: heads of any width. src: q, k, v, mask, sinks
#include "flash.cuh"

// A block for each row, in f32. Shared memory: q, a tile of aux[0] keys or values, their weights, the result.
KERNEL(attend_rows, 128, Node<5>)
{
    SHARED(float, memory);
    const Tensor &q = n.src[0], &k = n.src[1], &v = n.src[2];
    const int d = (int)q.ne[0], dv = (int)v.ne[0], width = d > dv ? d : dv, keys = (int)n.aux[0];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float *query = memory, *tile = query + d, *s = tile + keys * width, *o = s + keys;
    const i64 planes = k.ne[2] * q.ne[3], rows = q.ne[2] / k.ne[2] * q.ne[1];
    for (i64 unit = blockIdx.x; unit < rows * planes; unit += gridDim.x) {
        const Task t = task_of(n, unit / rows);
        const Row row = row_at(n, t, unit % rows);
        const float *from = (const float *)(q.data + at(q, 0, row.query, row.head, t.batch));
        __syncthreads();
        for (int e = threadIdx.x; e < d; e += blockDim.x) query[e] = from[e];
        for (int e = threadIdx.x; e < dv; e += blockDim.x) o[e] = 0.0f;
        float most = -INF, sum = 0.0f;
        for (i64 first = 0; first < k.ne[1]; first += keys) {
            const int here = (int)(k.ne[1] - first < keys ? k.ne[1] - first : keys);
            for (int which = 0; which < 2; ++which) { // keys, then values
                const Tensor &x = which == 0 ? k : v;
                const char *data = x.data + t.head * x.nb[2] + t.kv_batch * x.nb[3] + first * x.nb[1];
                const int n_elements = which == 0 ? d : dv;
                __syncthreads();
                if (is_quantized(x.type)) {
                    const int groups = n_elements / 32;
                    for (int task = threadIdx.x; task < here * groups; task += blockDim.x) {
                        unpack_any(x.type, data + task / groups * x.nb[1], task % groups,
                                   tile + task / groups * width + task % groups * 32);
                    }
                } else {
                    for (int task = threadIdx.x; task < here * n_elements; task += blockDim.x) {
                        const int key = task / n_elements, e = task % n_elements;
                        tile[key * width + e] = load(x.type, data + key * x.nb[1] + e * x.nb[0]);
                    }
                }
                __syncthreads();
                if (which == 1) break;
                for (int key = warp; key < here; key += blockDim.x / 32) {
                    float dot = 0.0f;
                    for (int e = lane; e < d; e += 32) dot += query[e] * tile[key * width + e];
                    dot = warp_sum(dot) * t.scale;
                    if (t.softcap > 0.0f) dot = t.softcap * tanhf(dot);
                    const float bias =
                        row.mask != 0 ? row.slope * half_to_float(((const u16 *)row.mask)[first + key]) : 0.0f;
                    if (lane == 0) s[key] = bias == -INF ? -INF : dot + bias;
                }
            }
            float top = most;
            for (int key = 0; key < here; ++key) top = fmaxf(top, s[key]);
            const float shrink = weight(most, top);
            most = top;
            sum *= shrink;
            for (int key = 0; key < here; ++key) sum += weight(s[key], top);
            for (int e = threadIdx.x; e < dv; e += blockDim.x) {
                float x = o[e] * shrink;
                for (int key = 0; key < here; ++key) {
                    if (s[key] != -INF) x += weight(s[key], top) * tile[key * width + e]; // else the value may be NaN
                }
                o[e] = x;
            }
        }
        const float top = fmaxf(most, row.sink), shrink = weight(most, top);
        const float all = sum * shrink + weight(row.sink, top);
        float *y = out_at(n, t, row);
        for (int e = threadIdx.x; e < dv; e += blockDim.x) y[e] = all > 0.0f ? o[e] * shrink / all : 0.0f;
    }
}
