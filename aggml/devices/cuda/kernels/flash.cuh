// Shared by the kernels of attention: which rows a block has, and which mask, slope and sink a row has.
//
// `group` heads of Q share a head of K; a block computes rows of all of them: row r is query r / group of head
// r % group. Not here: products and sums (flash_attn_ext.cu, flash_attn_ext_tiles.cu).
#pragma once
#include "any.cuh"

struct Task {
    i64 group, rows, head, batch, kv_batch; // head: of K
    float scale, softcap;
};

DEV Task task_of(const Node<5> &n, i64 plane)
{
    const Tensor &q = n.src[0], &k = n.src[1];
    Task t;
    t.group = q.ne[2] / k.ne[2];
    t.rows = t.group * q.ne[1];
    divide(plane, k.ne[2], &t.batch, &t.head);
    t.kv_batch = t.batch / (q.ne[3] / k.ne[3]);
    t.softcap = param(n.p, 2);
    t.scale = t.softcap > 0.0f ? param(n.p, 0) / t.softcap : param(n.p, 0);
    return t;
}

// One row: its query and head, its mask, its slope (ALiBi) and its sink.
struct Row {
    i64 query, head;
    const char *mask;
    float slope, sink;
};

DEV Row row_at(const Node<5> &n, const Task &t, i64 r)
{
    const Tensor &q = n.src[0], &m = n.src[3], &sinks = n.src[4];
    Row row;
    i64 rest;
    divide(r, t.group, &row.query, &rest);
    row.head = t.head * t.group + rest;
    const i64 line = m.ne[1] == 1 ? 0 : row.query;
    row.mask = m.data == 0 ? 0 : m.data + at(m, 0, line, modulo(row.head, m.ne[2]), modulo(t.batch, m.ne[3]));
    const float max_bias = param(n.p, 1);
    row.slope = max_bias > 0.0f ? alibi_slope(row.head, q.ne[2], max_bias) : 1.0f;
    row.sink = sinks.data == 0 ? -INF : f32_at(sinks.data + row.head * sinks.nb[0]);
    return row;
}

DEV float *out_at(const Node<5> &n, const Task &t, const Row &row)
{
    return (float *)(n.dst.data + at(n.dst, 0, row.head, row.query, t.batch));
}

// e^(x - most), or 0 if no key was seen yet.
DEV float weight(float x, float most)
{
    return most == -INF ? 0.0f : expf(x - most);
}
