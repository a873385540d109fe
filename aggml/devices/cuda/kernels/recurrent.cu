// Recurrences over the tokens of a sequence: ssm_conv, ssm_scan, rwkv_wkv6 and 7, gated_linear_attn, gated_delta_net.
//
// Results hold all outputs first, then states. If each row of a state gives one output, a warp keeps a row in
// registers, lanes along the row (up to 256 elements). If each column does, a thread keeps its column in the result.
#include "common.cuh"

enum { PARTS = 8 }; // elements of a row that a lane keeps

DEV const float *row_f32(const Tensor &t, i64 i1, i64 i2, i64 i3)
{
    return (const float *)(t.data + i1 * t.nb[1] + i2 * t.nb[2] + i3 * t.nb[3]);
}

// src sx [d_conv - 1 + t, d, s], c [d_conv, d] -> [d, t, s]
KERNEL(ssm_conv, 256, Node<2>)
{
    const Tensor &sx = n.src[0], &c = n.src[1];
    const i64 all = count(n.dst);
    for (i64 e = global_thread(); e < all; e += global_threads()) {
        const Index i = element_index(n.dst, e);
        const float *line = row_f32(sx, i.i0, i.i2, 0) + i.i1, *w = row_f32(c, i.i0, 0, 0);
        float sum = 0.0f;
        for (i64 k = 0; k < c.ne[0]; ++k) sum += line[k] * w[k];
        ((float *)n.dst.data)[e] = sum;
    }
}

// Copies of a row's states, which follow the outputs: as it was 0, 1, .. kept - 1 tokens before the end.
struct Snapshots {
    float *first;
    i64 step, kept;
};

DEV void keep(const Snapshots &s, i64 back, const float *state, i64 width)
{
    if (back >= s.kept) return;
#pragma unroll
    for (int k = 0; k < PARTS; ++k) {
        const i64 e = (threadIdx.x & 31) + 32 * k;
        if (e < width) s.first[back * s.step + e] = state[k];
    }
}

DEV void keep_initial(const Snapshots &s, i64 tokens, const float *state, i64 width)
{
    for (i64 back = tokens; back < s.kept; ++back) keep(s, back, state, width);
}

DEV void bring(float *state, const float *from, i64 width)
{
#pragma unroll
    for (int k = 0; k < PARTS; ++k) {
        const i64 e = (threadIdx.x & 31) + 32 * k;
        state[k] = e < width ? from[e] : 0.0f;
    }
}

DEV float dot(const float *x, const float *y)
{
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < PARTS; ++k) sum += x[k] * y[k];
    return warp_sum(sum);
}

// src s [n, p, h, slots], x [p, h, t, seqs], dt [h, t, seqs], A [n or 1, h], B and C [n, groups, t, seqs], ids [seqs].
// A warp for each of p, h, seqs.
KERNEL(ssm_scan, 128, Node<7>)
{
    if (n.fault[0] != 0) return;
    const Tensor &s = n.src[0], &x = n.src[1], &dt = n.src[2], &a = n.src[3], &b = n.src[4], &c = n.src[5];
    const i64 width = s.ne[0], ps = s.ne[1], heads = s.ne[2], tokens = x.ne[2], seqs = x.ne[3];
    const i64 all = ps * heads * seqs, size = width * ps;
    for (i64 w = global_thread() / 32; w < all; w += global_threads() / 32) {
        const i64 p = w % ps, h = w / ps % heads, seq = w / ps / heads, group = h / (heads / b.ne[1]);
        const int slot = *(const int *)(n.src[6].data + seq * n.src[6].nb[0]);
        float state[PARTS], rate[PARTS], in[PARTS], out[PARTS];
        bring(state, row_f32(s, p, h, slot), width);
        const float *rates = row_f32(a, h, 0, 0);
#pragma unroll
        for (int k = 0; k < PARTS; ++k) {
            const i64 e = (threadIdx.x & 31) + 32 * k;
            rate[k] = e < width ? rates[a.ne[0] == 1 ? 0 : e] : 0.0f;
        }
        Snapshots kept;
        kept.first = (float *)n.dst.data + count(x) + (seq * heads + h) * size + p * width;
        kept.step = seqs * heads * size;
        kept.kept = n.p[0];
        keep_initial(kept, tokens, state, width);
        for (i64 t = 0; t < tokens; ++t) {
            const float raw = row_f32(dt, t, seq, 0)[h], step = raw <= 20.0f ? log1pf(expf(raw)) : raw;
            const float value = row_f32(x, h, t, seq)[p] * step;
            bring(in, row_f32(b, group, t, seq), width);
            bring(out, row_f32(c, group, t, seq), width);
#pragma unroll
            for (int k = 0; k < PARTS; ++k) state[k] = state[k] * expf(step * rate[k]) + in[k] * value;
            const float y = dot(state, out);
            if ((threadIdx.x & 31) == 0) ((float *)n.dst.data)[((seq * tokens + t) * heads + h) * ps + p] = y;
            keep(kept, tokens - 1 - t, state, width);
        }
    }
}

// rwkv_wkv6: src k, v, r [d, h, t], tf [d, h], td [d, h, t], state; gated_linear_attn: k, v, q, g [d, h, t], state.
// The state is [k][v]: a thread has column j of it. grid: columns, heads and sequences.
KERNEL(outer, 64, Node<6>)
{
    const bool gla = n.op == OP_gated_linear_attn;
    const Tensor &key = n.src[0], &v = n.src[1], &r = n.src[2], &state = gla ? n.src[4] : n.src[5];
    const Tensor &decay = gla ? n.src[3] : n.src[4];
    const i64 d = key.ne[0], heads = key.ne[1], all = key.ne[2], seqs = state.ne[1], tokens = all / seqs;
    const float scale = gla ? param(n.p, 0) : 1.0f;
    const i64 j = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= d) return;
    for (i64 unit = blockIdx.y; unit < heads * seqs; unit += gridDim.y) {
        const i64 h = unit % heads, seq = unit / heads;
        float *column = (float *)n.dst.data + all * heads * d + unit * d * d + j;
        const float *from = (const float *)state.data + unit * d * d + j;
        for (i64 i = 0; i < d; ++i) column[i * d] = from[i * d];
        for (i64 t = seq * tokens; t < (seq + 1) * tokens; ++t) {
            const float *keys = row_f32(key, h, t, 0), *reads = row_f32(r, h, t, 0), *fades = row_f32(decay, h, t, 0);
            const float *first = gla ? 0 : row_f32(n.src[3], h, 0, 0), value = row_f32(v, h, t, 0)[j];
            float y = 0.0f;
            for (i64 i = 0; i < d; ++i) {
                const float kv = keys[i] * value, old = column[i * d], now = old * fades[i] + kv;
                y += gla ? now * (reads[i] * scale) : (kv * first[i] + old) * reads[i];
                column[i * d] = now;
            }
            ((float *)n.dst.data)[(t * heads + h) * d + j] = y;
        }
    }
}

// src r, w, k, v, a, b [d, h, t], state. The state is [v][k]: a warp has a row of it.
KERNEL(wkv7, 128, Node<7>)
{
    const i64 d = n.src[0].ne[0], heads = n.src[0].ne[1], all = n.src[0].ne[2], seqs = n.src[6].ne[1];
    const i64 tokens = all / seqs, units = d * heads * seqs;
    for (i64 u = global_thread() / 32; u < units; u += global_threads() / 32) {
        const i64 i = u % d, h = u / d % heads, seq = u / d / heads;
        float row[PARTS], r[PARTS], w[PARTS], k[PARTS], a[PARTS], b[PARTS];
        bring(row, (const float *)n.src[6].data + ((seq * heads + h) * d + i) * d, d);
        for (i64 t = seq * tokens; t < (seq + 1) * tokens; ++t) {
            bring(r, row_f32(n.src[0], h, t, 0), d);
            bring(w, row_f32(n.src[1], h, t, 0), d);
            bring(k, row_f32(n.src[2], h, t, 0), d);
            bring(a, row_f32(n.src[4], h, t, 0), d);
            bring(b, row_f32(n.src[5], h, t, 0), d);
            const float v = row_f32(n.src[3], h, t, 0)[i], along = dot(a, row);
#pragma unroll
            for (int e = 0; e < PARTS; ++e) row[e] = row[e] * w[e] + v * k[e] + along * b[e];
            const float y = dot(row, r);
            if ((threadIdx.x & 31) == 0) ((float *)n.dst.data)[(t * heads + h) * d + i] = y;
        }
        Snapshots kept;
        kept.first = (float *)n.dst.data + all * heads * d + ((seq * heads + h) * d + i) * d;
        kept.step = 0;
        kept.kept = 1;
        keep(kept, 0, row, d);
    }
}

// src q, k [d, hk, t, s], v [d, h, t, s], g [1 or d, h, t, s], beta [1, h, t, s], states [v][k]. A warp for each row.
KERNEL(delta, 128, Node<6>)
{
    const Tensor &tq = n.src[0], &tk = n.src[1], &v = n.src[2], &g = n.src[3];
    const i64 d = v.ne[0], heads = v.ne[1], tokens = v.ne[2], seqs = v.ne[3], units = d * heads * seqs;
    const float scale = 1.0f / sqrtf((float)d);
    for (i64 u = global_thread() / 32; u < units; u += global_threads() / 32) {
        const i64 i = u % d, h = u / d % heads, s = u / d / heads, place = ((s * heads + h) * d + i) * d;
        float row[PARTS], q[PARTS], k[PARTS], gate[PARTS];
        bring(row, (const float *)n.src[5].data + place, d);
        Snapshots kept;
        kept.first = (float *)n.dst.data + count(v) + place;
        kept.step = seqs * heads * d * d;
        kept.kept = n.p[0];
        keep_initial(kept, tokens, row, d);
        for (i64 t = 0; t < tokens; ++t) {
            const float *gates = row_f32(g, h, t, s);
            bring(gate, gates, g.ne[0]);
            bring(q, row_f32(tq, h % tq.ne[1], t, s), d);
            bring(k, row_f32(tk, h % tk.ne[1], t, s), d);
            const float one = expf(gates[0]);
#pragma unroll
            for (int e = 0; e < PARTS; ++e) row[e] *= g.ne[0] == 1 ? one : expf(gate[e]);
            const float change = (row_f32(v, h, t, s)[i] - dot(row, k)) * *row_f32(n.src[4], h, t, s);
#pragma unroll
            for (int e = 0; e < PARTS; ++e) row[e] += change * k[e];
            const float y = dot(row, q) * scale;
            if ((threadIdx.x & 31) == 0) ((float *)n.dst.data)[((s * tokens + t) * heads + h) * d + i] = y;
            keep(kept, tokens - 1 - t, row, d);
        }
    }
}
