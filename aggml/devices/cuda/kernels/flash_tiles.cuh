// Shared by the kernels of attention on tensor cores: asynchronous loads of keys and values, scores, sums.
//
// A warp has 16 rows. Products are f16 where K is f16 or quantized, bf16 where it is f32 or bf16, whose range f16
// lacks. Tiles of keys and of values lie as rows of words in shared memory, padded by 4 words so that 8 rows fall into
// different banks. While the tensor cores multiply one tile, the next one is loaded into a second buffer (cp.async from
// sm_80 on), if there is one. Not here: which warp has which columns (flash_attn_ext_tiles.cu, flash_attn_ext_wide.cu).
#pragma once
#include "flash.cuh"
#include "mma.cuh"
#include "staged.cuh"

enum { KEYS = 32 }; // of a tile

template <bool BF16> DEV u32 narrow(float x)
{
    return BF16 ? float_to_bf16(x) : float_to_half(x);
}

template <bool BF16> DEV u32 narrow2(float x, float y)
{
    return narrow<BF16>(x) | narrow<BF16>(y) << 16;
}

template <bool BF16> DEV void multiply(float d[4], const u32 a[4], const u32 b[2])
{
    if (BF16)
        mma_bf16(d, a, b);
    else
        mma_half(d, a, b);
}

// Brings elements e .. e + 7 of a row of a plain type to 4 words of shared memory; the copy may be asynchronous.
// Elements beyond width are zeros; all are if they are not wanted.
template <bool BF16>
DEV void bring8(u32 *to, i64 type, const char *row, i64 e, i64 width, bool aligned, bool wanted)
{
    const bool as_is = type == (BF16 ? 30 : 1);
    if (aligned && as_is && e + 8 <= width) {
        copy_async(to, row + 2 * e, wanted);
        return;
    }
    u32 w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const i64 at = e + 2 * i;
        const i64 size = type == F32 ? 4 : 2;
        w[i] = narrow2<BF16>(wanted && at < width ? load(type, row + at * size) : 0.0f,
                             wanted && at + 1 < width ? load(type, row + (at + 1) * size) : 0.0f);
    }
    *(uint4 *)to = make_uint4(w[0], w[1], w[2], w[3]);
}

// Brings a tile of K or V: of the rows first .. first + KEYS - 1 those whose bit is set in `wanted`, zeros for others.
template <bool BF16>
DEV void bring_rows(u32 *tile, int stride, const Tensor &x, const char *rows, i64 first, u32 wanted, bool aligned)
{
    if (BLOCKS && is_quantized(x.type)) {
        const int groups = (int)(x.ne[0] / 32);
        for (int task = threadIdx.x; task < KEYS * groups; task += blockDim.x) {
            const int key = task / groups, g = task % groups;
            float v[32];
            const bool there = (wanted >> key & 1) != 0;
            if (there) unpack_any(x.type, rows + (first + key) * x.nb[1], g, v);
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                tile[key * stride + 16 * g + i] = there ? narrow2<BF16>(v[2 * i], v[2 * i + 1]) : 0;
            }
        }
        return;
    }
    const int chunks = (stride - 4) / 4;
    for (int task = threadIdx.x; task < KEYS * chunks; task += blockDim.x) {
        const int key = task / chunks, c = task % chunks;
        bring8<BF16>(tile + key * stride + 4 * c, x.type, rows + (first + key) * x.nb[1], 8 * c, x.ne[0], aligned,
                     (wanted >> key & 1) != 0);
    }
}

// Brings the queries of a block, from first_row on, as rows of `stride` words; zeros after the last row.
template <bool BF16>
DEV void bring_queries(u32 *queries, int stride, int tile_rows, const Node<5> &n, const Task &t, i64 first_row)
{
    const Tensor &q = n.src[0];
    for (int task = threadIdx.x; task < tile_rows * (stride - 4); task += blockDim.x) {
        const int r = task / (stride - 4), w = task % (stride - 4);
        float x = 0.0f, y = 0.0f;
        if (first_row + r < t.rows) {
            const Row row = row_at(n, t, first_row + r);
            const float *from = (const float *)(q.data + at(q, 0, row.query, row.head, t.batch));
            if (2 * w < q.ne[0]) x = from[2 * w];
            if (2 * w + 1 < q.ne[0]) y = from[2 * w + 1];
        }
        queries[r * stride + w] = narrow2<BF16>(x, y);
    }
}

// The mask's summands for a tile of keys, -inf from `end` on. Returns a bit for each key that any row of the warp sees.
DEV u32 bring_bias(float bias[4][4], const Row rows[2], const bool real[2], i64 first, i64 end)
{
    const int member = threadIdx.x & 3;
    u32 seen = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const i64 key = first + 8 * j + 2 * member + r % 2;
            const Row &row = rows[r / 2];
            bias[j][r] = key >= end      ? -INF
                         : row.mask == 0 ? 0.0f
                                         : row.slope * half_to_float(((const u16 *)row.mask)[key]);
            if (real[r / 2] && bias[j][r] != -INF) seen |= 1u << (8 * j + 2 * member + r % 2);
        }
    }
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) seen |= __shfl_xor_sync(0xffffffffu, seen, d);
    return seen;
}

// Keys and values of one block, and where tiles of them go.
struct Sources {
    const Tensor &k, &v;
    const char *k_rows, *v_rows;
    i64 end;
    u32 *keys, *values, *seen; // keys, values: `stages` tiles of each; values == keys: they are the same rows
    int stride, v_stride, stages;
    bool aligned;
};

// Finds the first tile from `first` on with a key that any row of the block sees, and tells which keys those are; end
// or more if there is none. Other keys are not read: a cache may hold NaN where nothing was written yet, and 0 times
// NaN is NaN. Every thread must call this. If a tile is found, all threads have finished with the tile before.
DEV i64 find_tile(u32 *wanted, const Sources &x, const Row rows[2], const bool real[2], i64 first)
{
    const int warp = threadIdx.x >> 5;
    for (; first < x.end; first += KEYS) {
        float bias[4][4]; // looked up again when the tile has come: there are too few registers to keep it
        const u32 mine = bring_bias(bias, rows, real, first, x.end);
        if ((threadIdx.x & 31) == 0) x.seen[warp] = mine;
        if (__syncthreads_or(mine != 0)) break;
    }
    *wanted = 0;
    if (first < x.end) {
        for (int w = 0; w < (int)(blockDim.x / 32); ++w) *wanted |= x.seen[w];
    }
    return first;
}

template <bool BF16> DEV void bring_tile(const Sources &x, int stage, i64 first, u32 wanted)
{
    bring_rows<BF16>(x.keys + stage * KEYS * x.stride, x.stride, x.k, x.k_rows, first, wanted, x.aligned);
    if (x.values == x.keys) return;
    bring_rows<BF16>(x.values + stage * KEYS * x.v_stride, x.v_stride, x.v, x.v_rows, first, wanted, x.aligned);
}

// The two rows of a thread, 8 apart. `real` is false after the last row; the last one then stands in.
DEV void rows_of(Row rows[2], bool real[2], const Node<5> &n, const Task &t, i64 first)
{
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        real[h] = first + 8 * h < t.rows;
        rows[h] = row_at(n, t, real[h] ? first + 8 * h : t.rows - 1);
    }
}

// The state of a thread's two rows so far: the largest score, the sum of weights, sums of COLUMNS columns of V.
template <int COLUMNS> struct Sums {
    float most[2], sum[2], o[COLUMNS / 8][4];
};

template <int COLUMNS> DEV void clear(Sums<COLUMNS> &x)
{
    x.most[0] = x.most[1] = -INF;
    x.sum[0] = x.sum[1] = 0.0f;
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; ++c) x.o[c][0] = x.o[c][1] = x.o[c][2] = x.o[c][3] = 0.0f;
}

// Turns scores into weights p, the left operand of the next product. Sums so far are scaled down if the largest score
// grows.
template <bool BF16, int COLUMNS>
DEV void soften(u32 p[4][2], float s[4][4], const float bias[4][4], const Task &t, Sums<COLUMNS> &x)
{
    float top[2] = {x.most[0], x.most[1]};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            float y = s[j][r] * t.scale;
            if (t.softcap > 0.0f) y = t.softcap * tanhf(y);
            s[j][r] = bias[j][r] == -INF ? -INF : y + bias[j][r];
            top[r / 2] = fmaxf(top[r / 2], s[j][r]);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 1));
        top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 2));
        const float shrink = weight(x.most[h], top[h]);
        x.most[h] = top[h];
        x.sum[h] *= shrink;
#pragma unroll
        for (int c = 0; c < COLUMNS / 8; ++c) {
            x.o[c][2 * h] *= shrink;
            x.o[c][2 * h + 1] *= shrink;
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float y = weight(s[j][2 * h], top[h]), z = weight(s[j][2 * h + 1], top[h]);
            x.sum[h] += y + z;
            p[j][h] = narrow2<BF16>(y, z);
        }
    }
}

// Adds weights times a tile of values, from its column 8 c on as rows of v_stride words: 32 keys by 8 columns a load.
template <bool BF16, int COLUMNS>
DEV void add_values(Sums<COLUMNS> &x, const u32 p[4][2], const u32 *values, int v_stride)
{
    const u32 *row = values + (threadIdx.x & 31) * v_stride;
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; ++c) {
        u32 b[4];
        load_matrices<true>(b, row + 4 * c);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const u32 a[4] = {p[2 * half][0], p[2 * half][1], p[2 * half + 1][0], p[2 * half + 1][1]};
            multiply<BF16>(x.o[c], a, b + 2 * half);
        }
    }
}

// Writes the rows of this thread from column `from` on. If keys are split, it writes the block's part of them instead:
// sums, the largest score, the sum of weights.
template <int COLUMNS>
DEV void write_rows(const Node<5> &n, const Task &t, const Row rows[2], const bool real[2], Sums<COLUMNS> &x, i64 first,
                    int from)
{
    const Tensor &v = n.src[2];
    const int member = threadIdx.x & 3;
    const bool split = gridDim.z > 1;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        x.sum[h] += __shfl_xor_sync(0xffffffffu, x.sum[h], 1);
        x.sum[h] += __shfl_xor_sync(0xffffffffu, x.sum[h], 2);
        if (!real[h]) continue;
        const i64 r = first + 8 * h;
        float *part = (float *)n.scratch + ((blockIdx.y * t.rows + r) * gridDim.z + blockIdx.z) * (v.ne[0] + 2);
        float factor = 1.0f;
        if (split) {
            if (member == 0 && from == 0) {
                part[v.ne[0]] = x.most[h];
                part[v.ne[0] + 1] = x.sum[h];
            }
        } else {
            const float top = fmaxf(x.most[h], rows[h].sink), shrink = weight(x.most[h], top);
            const float all = x.sum[h] * shrink + weight(rows[h].sink, top);
            factor = all > 0.0f ? shrink / all : 0.0f;
        }
        float *y = split ? part : out_at(n, t, rows[h]);
#pragma unroll
        for (int c = 0; c < COLUMNS / 8; ++c) {
            const i64 column = from + 8 * c + 2 * member;
            if (column < v.ne[0]) y[column] = x.o[c][2 * h] * factor;
            if (column + 1 < v.ne[0]) y[column + 1] = x.o[c][2 * h + 1] * factor;
        }
    }
}

// Where keys are split over blocks: whether this block is the last of those with its rows that has written its parts.
// n.fault: a word for each tile of rows in all planes, 0 before and afterwards.
DEV bool is_last_block(const Node<5> &n)
{
    bool last = false;
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 *arrived = (u32 *)n.fault + blockIdx.y * gridDim.x + blockIdx.x;
        __threadfence(); // a block that sees this block counted also sees its parts
        last = atomicAdd(arrived, 1u) == gridDim.z - 1;
        if (last) *arrived = 0;
        __threadfence();
    }
    return __syncthreads_or(last) != 0;
}

// Combines the parts that all blocks wrote of this block's rows. A warp takes 128 columns of a row. Each lane computes
// the weights of some splits and hands them to the other lanes. Values known before the walk over the keys are computed
// again instead of passed in: they would take registers during the walk.
DEV void combine_parts(const Node<5> &n, int tile_rows)
{
    const Task t = task_of(n, blockIdx.y);
    const i64 first = (i64)blockIdx.x * tile_rows;
    const int lane = threadIdx.x & 31, dv = (int)n.src[2].ne[0], splits = (int)gridDim.z, shares = (dv + 127) / 128;
    const i64 width = dv + 2;
    for (int task = (int)(threadIdx.x >> 5); task < tile_rows * shares; task += (int)(blockDim.x >> 5)) {
        const i64 r = first + task / shares;
        const int from = task % shares * 128 + lane;
        if (r >= t.rows) break;
        const Row row = row_at(n, t, r);
        const float *parts = (const float *)n.scratch + (blockIdx.y * t.rows + r) * splits * width;
        float top = row.sink, sum = 0.0f, x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int s = lane; s < splits; s += 32) top = fmaxf(top, parts[s * width + dv]);
        top = warp_max(top);
        for (int base = 0; base < splits; base += 32) {
            const int here = splits - base < 32 ? splits - base : 32;
            const float *mine = parts + (base + lane) * width + dv;
            const float share = lane < here ? weight(mine[0], top) : 0.0f;
            if (lane < here) sum += mine[1] * share;
#pragma unroll 4
            for (int s = 0; s < here; ++s) {
                const float w = __shfl_sync(0xffffffffu, share, s);
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    if (from + 32 * c < dv) x[c] += parts[(base + s) * width + from + 32 * c] * w;
                }
            }
        }
        sum = warp_sum(sum) + weight(row.sink, top);
        float *y = out_at(n, t, row);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            if (from + 32 * c < dv) y[from + 32 * c] = sum > 0.0f ? x[c] / sum : 0.0f;
        }
    }
}

// The sources of a block. aux: words of a row of q and k in shared memory, keys of a split, whether rows of k and v
// begin at multiples of 16 bytes, stages, whether v has the same rows as k. room: where the tiles are.
DEV Sources sources_of(const Node<5> &n, const Task &t, u32 *room, int columns)
{
    const Tensor &k = n.src[1], &v = n.src[2];
    const i64 begin = (i64)blockIdx.z * n.aux[1];
    Sources x = {k, v, 0, 0};
    x.k_rows = k.data + t.head * k.nb[2] + t.kv_batch * k.nb[3];
    x.v_rows = v.data + t.head * v.nb[2] + t.kv_batch * v.nb[3];
    x.end = begin + n.aux[1] < k.ne[1] ? begin + n.aux[1] : k.ne[1];
    x.stride = (int)n.aux[0];
    x.v_stride = n.aux[4] != 0 ? x.stride : columns / 2 + 4;
    x.stages = (int)n.aux[3];
    x.aligned = n.aux[2] != 0;
    x.keys = room;
    x.values = n.aux[4] != 0 ? room : room + x.stages * KEYS * x.stride;
    x.seen = x.values + x.stages * KEYS * x.v_stride;
    return x;
}

// Walks the tiles of a block's keys. body.scores(s, keys) computes the scores of all rows of the warp. With two stages,
// a tile is computed while the next one is loaded.
template <bool BF16, int COLUMNS, class Body>
DEV void walk(const Body &body, const Sources &x, const Task &t, const Row rows[2], const bool real[2],
              Sums<COLUMNS> &sums, i64 begin, int from)
{
    u32 wanted;
    int stage = 0; // where the next tile goes
    i64 now = x.end, next = find_tile(&wanted, x, rows, real, begin);
    while (next < x.end || now < x.end) {
        if (next < x.end) bring_tile<BF16>(x, stage, next, wanted);
        commit_copies();
        if (x.stages == 2)
            wait_for_copies<1>();
        else
            wait_for_copies<0>();
        __syncthreads();
        if (x.stages == 1) now = next;
        if (now < x.end) {
            const int which = x.stages == 2 ? stage ^ 1 : 0;
            float s[4][4], bias[4][4];
            u32 p[4][2];
            body.scores(s, x.keys + which * KEYS * x.stride);
            (void)bring_bias(bias, rows, real, now, x.end);
            soften<BF16>(p, s, bias, t, sums);
            add_values<BF16>(sums, p, x.values + which * KEYS * x.v_stride + from / 2, x.v_stride);
        }
        now = x.stages == 2 ? next : x.end;
        if (x.stages == 2) stage ^= 1;
        if (next < x.end) next = find_tile(&wanted, x, rows, real, next + KEYS);
    }
}
