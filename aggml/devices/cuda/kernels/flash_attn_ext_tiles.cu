// flash_attn_ext on tensor cores: softmax(scale Q K^T + mask) V in one pass over the keys (Milakov and Gimelshein,
// 2018; Dao et al., 2022), with ALiBi, softcap and sinks.
//
// A warp has 16 rows. Products are f16 where K is f16 or quantized, bf16 where it is f32 or bf16, whose range f16 has
// not. Keys may be split over blocks; `combine` of flash_attn_ext.cu then brings the parts together. A module is
// compiled for WIDTH columns of V, BF16_TILES or not, and BLOCKS: with quantized K and V, which take long to compile,
// or without.
// src: q, k, v, mask, sinks
#include "flash.cuh"
#include "mma.cuh"

enum { KEYS = 32 }; // of a tile

template <bool BF16> DEV u32 narrow(float x)
{
    return BF16 ? float_to_bf16(x) : float_to_half(x);
}

template <bool BF16> DEV u32 narrow2(float x, float y)
{
    return narrow<BF16>(x) | narrow<BF16>(y) << 16;
}

// Elements e .. e + 7 of a row of a plain type as 4 words; zeros beyond width.
template <bool BF16> DEV void bring8(u32 w[4], i64 type, const char *row, i64 e, i64 width, bool aligned)
{
    const bool as_is = type == (BF16 ? 30 : 1);
    if (aligned && as_is && e + 8 <= width) {
        const uint4 x = *(const uint4 *)(row + 2 * e);
        w[0] = x.x, w[1] = x.y, w[2] = x.z, w[3] = x.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const i64 at = e + 2 * i;
        const i64 size = type == F32 ? 4 : 2;
        w[i] = narrow2<BF16>(at < width ? load(type, row + at * size) : 0.0f,
                             at + 1 < width ? load(type, row + (at + 1) * size) : 0.0f);
    }
}

// Those of the keys first .. first + KEYS - 1 that `wanted` names, as rows of `stride` words; zeros for the others.
template <bool BF16> DEV void bring_keys(u32 *tile, int stride, const Tensor &k, const char *rows, i64 first, u32 wanted,
                                         bool aligned)
{
    const int words = stride - 4; // a multiple of 8: a multiple of 16 elements
    if (BLOCKS && is_quantized(k.type)) {
        const int groups = (int)(k.ne[0] / 32);
        for (int task = threadIdx.x; task < KEYS * groups; task += blockDim.x) {
            const int key = task / groups, g = task % groups;
            float x[32];
            const bool there = (wanted >> key & 1) != 0;
            if (there) unpack_any(k.type, rows + (first + key) * k.nb[1], g, x);
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                tile[key * stride + 16 * g + i] = there ? narrow2<BF16>(x[2 * i], x[2 * i + 1]) : 0;
            }
        }
        return;
    }
    const int chunks = words / 4;
    for (int task = threadIdx.x; task < KEYS * chunks; task += blockDim.x) {
        const int key = task / chunks, c = task % chunks;
        u32 w[4] = {0, 0, 0, 0};
        if (wanted >> key & 1) bring8<BF16>(w, k.type, rows + (first + key) * k.nb[1], 8 * c, k.ne[0], aligned);
        *(uint4 *)(tile + key * stride + 4 * c) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

// Values of these keys, turned: row c is column c of V, word j keys 2 j and 2 j + 1.
template <bool BF16> DEV void bring_values(TileRow *tile, int columns, const Tensor &v, const char *rows, i64 first,
                                           u32 wanted, bool aligned)
{
    if (BLOCKS && is_quantized(v.type)) {
        const int groups = (int)(v.ne[0] / 32);
        for (int task = threadIdx.x; task < KEYS * (columns / 32); task += blockDim.x) {
            const int key = task % KEYS, g = task / KEYS;
            const bool there = (wanted >> key & 1) != 0 && g < groups;
            float x[32];
            if (there) unpack_any(v.type, rows + (first + key) * v.nb[1], g, x);
#pragma unroll
            for (int i = 0; i < 32; ++i) ((u16 *)tile[32 * g + i])[key] = there ? (u16)narrow<BF16>(x[i]) : (u16)0;
        }
        return;
    }
    for (int task = threadIdx.x; task < KEYS / 2 * (columns / 8); task += blockDim.x) {
        const int pair = task % (KEYS / 2), c = task / (KEYS / 2) * 8;
        u32 x[4] = {0, 0, 0, 0}, y[4] = {0, 0, 0, 0};
        const i64 key = first + 2 * pair;
        if (wanted >> 2 * pair & 1) bring8<BF16>(x, v.type, rows + key * v.nb[1], c, v.ne[0], aligned);
        if (wanted >> 2 * pair & 2) bring8<BF16>(y, v.type, rows + (key + 1) * v.nb[1], c, v.ne[0], aligned);
        u32 turned[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) turned[i] = __byte_perm(x[i / 2], y[i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
        const int flip = task & KEYS / 2 ? 4 : 0; // the halves of a warp, 8 rows apart, meet other banks
#pragma unroll
        for (int i = 0; i < 8; ++i) tile[c + (i ^ flip)][pair] = flip != 0 ? turned[i ^ 4] : turned[i];
    }
}

template <bool BF16> DEV void multiply(float d[4], const u32 a[4], const u32 b[2])
{
    if (BF16)
        mma_bf16(d, a, b);
    else
        mma_half(d, a, b);
}

// Queries first_row .. of a block as rows of `stride` words; zeros beyond the last one.
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

// What the mask adds to a tile of keys, -inf beyond `end`. Returns a bit for each key that any row of the warp sees.
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

// The rows of this thread, or their parts where keys are split: sums, the largest, the sum of weights.
template <int DV>
DEV void write_rows(const Node<5> &n, const Task &t, const Row rows[2], const bool real[2], const float most[2], float sum[2],
                    const float o[DV / 8][4], i64 first)
{
    const Tensor &v = n.src[2];
    const int member = threadIdx.x & 3;
    const bool split = gridDim.z > 1;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
        if (!real[h]) continue;
        const i64 r = first + 8 * h;
        float *part = (float *)n.scratch + ((blockIdx.y * t.rows + r) * gridDim.z + blockIdx.z) * (v.ne[0] + 2);
        float factor = 1.0f;
        if (split) {
            if (member == 0) {
                part[v.ne[0]] = most[h];
                part[v.ne[0] + 1] = sum[h];
            }
        } else {
            const float top = fmaxf(most[h], rows[h].sink), shrink = weight(most[h], top);
            const float all = sum[h] * shrink + weight(rows[h].sink, top);
            factor = all > 0.0f ? shrink / all : 0.0f;
        }
        float *y = split ? part : out_at(n, t, rows[h]);
#pragma unroll
        for (int c = 0; c < DV / 8; ++c) {
            const i64 column = 8 * c + 2 * member;
            if (column < v.ne[0]) y[column] = o[c][2 * h] * factor;
            if (column + 1 < v.ne[0]) y[column + 1] = o[c][2 * h + 1] * factor;
        }
    }
}

// grid: tiles of rows, heads of K in all batches, splits of the keys. aux: words of a row of q and k in shared memory,
// keys of a split, whether rows of k and v are at multiples of 16 bytes. DV: columns of V, rounded up.
template <bool BF16, int DV> DEV void attend(const Node<5> &n)
{
    SHARED(u32, memory);
    const Tensor &k = n.src[1], &v = n.src[2];
    const int stride = (int)n.aux[0], warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int group = lane >> 2, member = lane & 3, tile_rows = (int)(blockDim.x / 2);
    TileRow *values = (TileRow *)memory;
    u32 *queries = memory + DV * 20, *keys = queries + tile_rows * stride, *seen = keys + KEYS * stride;
    const Task t = task_of(n, blockIdx.y);
    const i64 first_row = (i64)blockIdx.x * tile_rows;
    const i64 begin = (i64)blockIdx.z * n.aux[1], end = begin + n.aux[1] < k.ne[1] ? begin + n.aux[1] : k.ne[1];
    const char *k_rows = k.data + t.head * k.nb[2] + t.kv_batch * k.nb[3];
    const char *v_rows = v.data + t.head * v.nb[2] + t.kv_batch * v.nb[3];

    bring_queries<BF16>(queries, stride, tile_rows, n, t, first_row);

    Row rows[2];
    bool real[2];
    float most[2] = {-INF, -INF}, sum[2] = {0.0f, 0.0f}, o[DV / 8][4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const i64 r = first_row + warp * 16 + group + 8 * h;
        real[h] = r < t.rows;
        rows[h] = row_at(n, t, real[h] ? r : t.rows - 1);
    }
#pragma unroll
    for (int c = 0; c < DV / 8; ++c) o[c][0] = o[c][1] = o[c][2] = o[c][3] = 0.0f;

    // A warp's queries stay in registers where they are not too many: it reads them with each tile otherwise.
    const u32 *mine = queries + (warp * 16 + group) * stride + member;
    const bool held = DV <= 128 && stride - 4 <= DV / 2;
    u32 own[DV <= 128 ? DV / 16 : 1][4];
    __syncthreads();
#pragma unroll
    for (int w = 0; w < (DV <= 128 ? DV / 16 : 1); ++w) {
        const bool there = held && 8 * w < stride - 4;
        own[w][0] = there ? mine[8 * w] : 0;
        own[w][1] = there ? mine[8 * w + 8 * stride] : 0;
        own[w][2] = there ? mine[8 * w + 4] : 0;
        own[w][3] = there ? mine[8 * w + 8 * stride + 4] : 0;
    }

    for (i64 first = begin; first < end; first += KEYS) {
        // What the mask adds, -inf beyond the keys. What no row of the block sees is not looked at: a cache of keys has
        // places that nobody wrote yet, and 0 times NaN is NaN.
        float bias[4][4];
        const u32 mine_seen = bring_bias(bias, rows, real, first, end);
        if (lane == 0) seen[warp] = mine_seen;
        if (!__syncthreads_or(mine_seen != 0)) continue; // and the tiles before are done with
        u32 wanted = 0;
        for (int w = 0; w < (int)(blockDim.x / 32); ++w) wanted |= seen[w];
        bring_keys<BF16>(keys, stride, k, k_rows, first, wanted, n.aux[2] != 0);
        bring_values<BF16>(values, DV, v, v_rows, first, wanted, n.aux[2] != 0);
        __syncthreads();

        float s[4][4];
#pragma unroll
        for (int j = 0; j < 4; ++j) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
        if (held) {
#pragma unroll
            for (int w = 0; w < (DV <= 128 ? DV / 16 : 1); ++w) {
                if (8 * w >= stride - 4) break;
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const u32 *from = keys + (8 * j + group) * stride + 8 * w + member;
                    const u32 b[2] = {from[0], from[4]};
                    multiply<BF16>(s[j], own[w], b);
                }
            }
        }
        for (int w = held ? stride - 4 : 0; w < stride - 4; w += 8) {
            const u32 a[4] = {mine[w], mine[w + 8 * stride], mine[w + 4], mine[w + 8 * stride + 4]};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const u32 *from = keys + (8 * j + group) * stride + w + member;
                const u32 b[2] = {from[0], from[4]};
                multiply<BF16>(s[j], a, b);
            }
        }
        float top[2] = {most[0], most[1]};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                float x = s[j][r] * t.scale;
                if (t.softcap > 0.0f) x = t.softcap * tanhf(x);
                s[j][r] = bias[j][r] == -INF ? -INF : x + bias[j][r];
                top[r / 2] = fmaxf(top[r / 2], s[j][r]);
            }
        }
        u32 p[4][2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 1));
            top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 2));
            const float shrink = weight(most[h], top[h]);
            most[h] = top[h];
            sum[h] *= shrink;
#pragma unroll
            for (int c = 0; c < DV / 8; ++c) {
                o[c][2 * h] *= shrink;
                o[c][2 * h + 1] *= shrink;
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float x = weight(s[j][2 * h], top[h]), y = weight(s[j][2 * h + 1], top[h]);
                sum[h] += x + y;
                p[j][h] = narrow2<BF16>(x, y);
            }
        }
#pragma unroll
        for (int c = 0; c < DV / 8; ++c) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const u32 a[4] = {p[2 * half][0], p[2 * half][1], p[2 * half + 1][0], p[2 * half + 1][1]};
                u32 b[2];
                load_b(b, values, 8 * c, half);
                multiply<BF16>(o[c], a, b);
            }
        }
    }

    write_rows<DV>(n, t, rows, real, most, sum, o, first_row + warp * 16 + group);
}

KERNEL(attend_tiles, 128, Node<5>) { attend<BF16_TILES != 0, WIDTH>(n); }
