// Products with a matrix of the quantized type TYPE: mul_mat and mul_mat_id on columns that are int8 (columns.cu).
//
// Few columns: warps along the depth, lanes a group of 32 each, dp4a. What bounds them is how many lines of memory the
// loads of a warp touch: blocks have odd sizes, so a warp brings 32 groups of some rows to shared memory in loads of 16
// bytes, those of the next 32 already under way, and takes them apart there. Many: tiles of 64 x 64 on tensor cores;
// each 32 of the depth are multiplied as integers and then scaled.
// for each type: quantized
#include "columns.cuh"
#include "mma.cuh"
#include "quant.cuh"

enum {
    CHUNK = 32 * 32 / Block<TYPE>::n * Block<TYPE>::bytes, // bytes of 32 groups of a row
    VECTORS = (CHUNK + 30) / 16,                           // of 16 bytes that they touch, wherever they begin
    WARPS = 4
};

// Rows of a warp: what is read of the columns serves all of them.
template <int N> struct Width {
    static const int rows = CHUNK > 700 || N > 4 ? 2 : 4, each = (rows * VECTORS + 31) / 32;
};

// 16 bytes at multiples of 16 of rows a, a + nb, .. from `at` on, a warp's together; none that lies beyond a row. What is
// before or behind a row in them belongs to the same buffer, whose size is a multiple of 16.
template <int N> DEV void fetch(uint4 v[Width<N>::each], const char *a, i64 nb, int last, i64 at, i64 bytes)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int e = 0; e < Width<N>::each; ++e) {
        const int i = lane + 32 * e, r = i / VECTORS, k = i % VECTORS;
        const char *row = a + (r < last ? r : last) * nb, *start = row + at, *end = row + bytes;
        const char *p = start - ((u64)start & 15) + 16 * k;
        if (end > start + CHUNK) end = start + CHUNK;
        v[e] = make_uint4(0, 0, 0, 0);
        if (r < Width<N>::rows && p < end) v[e] = *(const uint4 *)p;
    }
}

// Group g of a row that lies in shared memory: small blocks by whole words, brought to their place by shifts.
DEV void take(const char *row, int g, Group &o)
{
    if (Block<TYPE>::n != 32) {
        unpack_row<TYPE, true>(row, g, o);
        return;
    }
    enum { WORDS = (Block<TYPE>::bytes + 3) / 4 };
    const char *p = row + g * Block<TYPE>::bytes;
    const u32 *from = (const u32 *)(p - ((u64)p & 3));
    const u32 shift = 8 * (u32)((u64)p & 3);
    u32 raw[WORDS], word = from[0];
#pragma unroll
    for (int k = 0; k < WORDS; ++k) { // behind the last word nothing is needed: sizes are as odd as places
        const u32 next = k + 1 < WORDS ? from[k + 1] : 0;
        raw[k] = __funnelshift_r(word, next, shift);
        word = next;
    }
    unpack<TYPE>((const char *)raw, 0, o);
}

template <int N> DEV const char *staged_row(const uint4 *staged, const char *a, i64 nb, int last, i64 at, int r)
{
    const char *start = a + (r < last ? r : last) * nb + at;
    return (const char *)&staged[r * VECTORS] + ((u64)start & 15);
}

DEV float dot(const Group &o, int4 low, int4 high, float4 scale)
{
    const int *q = o.q;
    const int dot0 = __dp4a(q[3], low.w, __dp4a(q[2], low.z, __dp4a(q[1], low.y, __dp4a(q[0], low.x, 0))));
    const int dot1 = __dp4a(q[7], high.w, __dp4a(q[6], high.z, __dp4a(q[5], high.y, __dp4a(q[4], high.x, 0))));
    const float all = Block<TYPE>::halves ? o.d[0] * (float)dot0 + o.d[1] * (float)dot1 : o.d[0] * (float)(dot0 + dot1);
    return Block<TYPE>::mins ? all * scale.x + o.m[0] * scale.y + o.m[1] * scale.z : all * scale.x;
}

// Rows row .. times columns first .. first + N - 1 (those beyond count are not written). With `split` the warps of a block
// have the same rows and every fourth 32 groups each; else rows of their own.
template <int N, class Args> DEV void few(const Args &n, const Columns &c, i64 row, i64 first, bool split)
{
    enum { ROWS = Width<N>::rows, EACH = Width<N>::each };
    __shared__ uint4 staged[WARPS][ROWS * VECTORS];
    __shared__ float parts[WARPS][ROWS * N];
    const i64 m = n.dst.ne[0], groups = n.src[0].ne[0] / 32, nb = n.src[0].nb[1];
    const i64 bytes = groups * 32 / Block<TYPE>::n * Block<TYPE>::bytes;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, last = row + ROWS <= m ? ROWS - 1 : (int)(m - 1 - row);
    const char *a = c.a + row * nb;
    const Act *x[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
        const i64 slot = slot_at(c, first + j < c.count ? first + j : c.count - 1);
        x[j] = acts(n) + row_of(n, c, slot) * groups;
    }
    float sum[ROWS][N];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int j = 0; j < N; ++j) sum[r][j] = 0.0f;
    }
    const i64 step = split ? 32 * WARPS : 32;
    i64 g0 = split ? 32 * warp : 0;
    uint4 v[EACH];
    if (g0 < groups) fetch<N>(v, a, nb, last, g0 / 32 * CHUNK, bytes);
    for (; g0 < groups; g0 += step) {
        const i64 at = g0 / 32 * CHUNK;
        const bool there = g0 + lane < groups;
        const int mine = there ? lane : 0; // else what lies there is no block
        __syncwarp();
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            if (lane + 32 * e < ROWS * VECTORS) staged[warp][lane + 32 * e] = v[e];
        }
        __syncwarp();
        if (g0 + step < groups) fetch<N>(v, a, nb, last, at + step / 32 * CHUNK, bytes);
        Group o[ROWS];
        if (N > 2) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r) take(staged_row<N>(staged[warp], a, nb, last, at, r), mine, o[r]);
        }
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const Act *y = x[j] + g0 + mine;
            const int4 low = *(const int4 *)&y->q[0], high = *(const int4 *)&y->q[4];
            const float4 scale = *(const float4 *)&y->d;
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                if (N <= 2 && j == 0) {
                    take(staged_row<N>(staged[warp], a, nb, last, at, r), mine, o[r]);
                    if (N == 1) __syncwarp(); // one row after the other, in fewer registers
                }
                const float value = dot(o[r], low, high, scale);
                sum[r][j] += there ? value : 0.0f;
            }
            if (N > 4) __syncwarp(); // one column after the other
        }
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const float total = warp_sum(sum[r][j]);
            if (lane != 0) continue;
            if (split)
                parts[warp][r * N + j] = total;
            else if (row + r < m && first + j < c.count)
                ((float *)result_at(n, c, slot_at(c, first + j)))[row + r] = total;
        }
    }
    if (!split) return;
    __syncthreads();
    const int r = threadIdx.x / N, j = threadIdx.x % N;
    if (r < ROWS && row + r < m && first + j < c.count) {
        float total = parts[0][threadIdx.x];
#pragma unroll
        for (int w = 1; w < WARPS; ++w) total += parts[w][threadIdx.x];
        ((float *)result_at(n, c, slot_at(c, first + j)))[row + r] = total;
    }
    __syncthreads();
}

// The first row of a warp, and whether its block's warps share rows. aux[2]: rows of a block
template <int N, class Args> DEV i64 row_of_warp(const Args &n, bool *split)
{
    *split = n.aux[2] == Width<N>::rows;
    return (i64)blockIdx.x * n.aux[2] + (*split ? 0 : (threadIdx.x >> 5) * Width<N>::rows);
}

// grid: rows / aux[2], batches. aux[0]: the first column
template <int N> DEV void few_columns(const Node<2> &n)
{
    bool split;
    const i64 row = row_of_warp<N>(n, &split);
    if (row >= n.dst.ne[0]) return;
    for (i64 batch = blockIdx.y; batch < n.dst.ne[2] * n.dst.ne[3]; batch += gridDim.y) {
        few<N>(n, columns_of(n, batch), row, n.aux[0], split);
    }
}

// What keeps memory busy is how many bytes are under way: 16 warps with 2 KiB each (elsewhere it takes more registers).
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200)
enum { FIT = 3 };
#else
enum { FIT = 4 };
#endif

KERNEL_OF(few_1, 128, FIT, Node<2>) { few_columns<1>(n); }
KERNEL_OF(few_2, 128, 3, Node<2>) { few_columns<2>(n); }
KERNEL_OF(few_4, 128, 2, Node<2>) { few_columns<4>(n); }
KERNEL_OF(few_8, 128, 2, Node<2>) { few_columns<8>(n); }

// grid: rows / aux[2], slots
KERNEL_OF(id_few, 128, FIT, Node<3>)
{
    if (n.fault[0] != 0) return;
    bool split;
    const i64 row = row_of_warp<1>(n, &split), used = n.src[2].ne[0];
    if (row >= n.dst.ne[0]) return;
    for (i64 slot = blockIdx.y; slot < slots_of(n); slot += gridDim.y) {
        const int id = *(const int *)(n.src[2].data + slot % used * n.src[2].nb[0] + slot / used * n.src[2].nb[1]);
        Columns c;
        c.a = n.src[0].data + (id < 0 ? 0 : id) * n.src[0].nb[2];
        c.first = slot;
        c.count = 1;
        c.order = 0;
        c.batch = 0;
        if (id >= 0) {
            few<1>(n, c, row, 0, split);
        } else if ((threadIdx.x & 31) < Width<1>::rows && row + (threadIdx.x & 31) < n.dst.ne[0]) {
            ((float *)result_at(n, c, slot))[row + (threadIdx.x & 31)] = 0.0f;
        }
    }
}

enum { TILE = 64, STEPS = 2 }; // rows and columns of a tile; 32s of the depth at a time

// 4 warps, each 32 x 32 of the tile that begins at `row` and column `first`.
template <class Args> DEV void tile(const Args &n, const Columns &c, i64 row, i64 first)
{
    __shared__ __align__(16) TileRow a_q[TILE], b_q[TILE];
    __shared__ float a_d[TILE][STEPS][2], a_m[TILE][STEPS][2], b_d[TILE][STEPS], b_s[TILE][STEPS][2];
    const i64 m = n.dst.ne[0], groups = n.src[0].ne[0] / 32;
    const int group = (threadIdx.x & 31) >> 2, member = threadIdx.x & 3, warp = threadIdx.x >> 5;
    const int to_row = warp % 2 * 32, to_column = warp / 2 * 32;
    const int mine = threadIdx.x / STEPS, step = threadIdx.x % STEPS; // what this thread brings: a row, a column
    const char *my_a = row + mine < m ? c.a + (row + mine) * n.src[0].nb[1] : 0;
    const Act *my_b = first + mine < c.count ? acts(n) + row_of(n, c, slot_at(c, first + mine)) * groups : 0;
    float sum[2][4][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int r = 0; r < 4; ++r) sum[i][j][r] = 0.0f;
        }
    }
    for (i64 g0 = 0; g0 < groups; g0 += STEPS) {
        const i64 g = g0 + step;
        Group o;
#pragma unroll
        for (int k = 0; k < 8; ++k) o.q[k] = 0;
        o.d[0] = o.d[1] = o.m[0] = o.m[1] = 0.0f;
        if (my_a != 0 && g < groups) unpack_row<TYPE>(my_a, g, o);
        Act x;
#pragma unroll
        for (int k = 0; k < 8; ++k) x.q[k] = 0;
        x.d = x.s[0] = x.s[1] = 0.0f;
        if (my_b != 0 && g < groups) x = my_b[g];
        __syncthreads();
        *(int4 *)&a_q[mine][8 * step] = make_int4(o.q[0], o.q[1], o.q[2], o.q[3]);
        *(int4 *)&a_q[mine][8 * step + 4] = make_int4(o.q[4], o.q[5], o.q[6], o.q[7]);
        *(int4 *)&b_q[mine][8 * step] = make_int4(x.q[0], x.q[1], x.q[2], x.q[3]);
        *(int4 *)&b_q[mine][8 * step + 4] = make_int4(x.q[4], x.q[5], x.q[6], x.q[7]);
        a_d[mine][step][0] = o.d[0];
        a_d[mine][step][1] = o.d[1];
        a_m[mine][step][0] = o.m[0];
        a_m[mine][step][1] = o.m[1];
        b_d[mine][step] = x.d;
        b_s[mine][step][0] = x.s[0];
        b_s[mine][step][1] = x.s[1];
        __syncthreads();
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            u32 b[4][2];
#pragma unroll
            for (int j = 0; j < 4; ++j) load_b(b[j], b_q, to_column + 8 * j, s);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                u32 a[4];
                load_a(a, a_q, to_row + 16 * i, s);
                const int top = to_row + 16 * i + group;
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int column = to_column + 8 * j + 2 * member;
                    int low[4] = {0, 0, 0, 0}, high[4] = {0, 0, 0, 0};
                    if (Block<TYPE>::halves) {
                        const u32 b_low[2] = {b[j][0], 0}, b_high[2] = {0, b[j][1]};
                        mma_int8(low, a, b_low);
                        mma_int8(high, a, b_high);
                    } else {
                        mma_int8(low, a, b[j]);
                    }
#pragma unroll
                    for (int r = 0; r < 4; ++r) {
                        const int y = top + r / 2 * 8, z = column + r % 2;
                        float dot = a_d[y][s][0] * (float)low[r];
                        if (Block<TYPE>::halves) dot += a_d[y][s][1] * (float)high[r];
                        sum[i][j][r] += dot * b_d[z][s];
                        if (Block<TYPE>::mins) {
                            sum[i][j][r] += a_m[y][s][0] * b_s[z][s][0] + a_m[y][s][1] * b_s[z][s][1];
                        }
                    }
                }
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const i64 column = first + to_column + 8 * j + 2 * member + r % 2;
            if (column >= c.count) continue;
            float *y = (float *)result_at(n, c, slot_at(c, column));
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const i64 to = row + to_row + 16 * i + group + r / 2 * 8;
                if (to < m) y[to] = sum[i][j][r];
            }
        }
    }
}

// grid: tiles of rows, tiles of columns, batches
KERNEL(tiles, 128, Node<2>)
{
    for (i64 batch = blockIdx.z; batch < n.dst.ne[2] * n.dst.ne[3]; batch += gridDim.z) {
        for (i64 first = (i64)blockIdx.y * TILE; first < n.dst.ne[1]; first += (i64)gridDim.y * TILE) {
            tile(n, columns_of(n, batch), (i64)blockIdx.x * TILE, first);
        }
    }
}

// grid: tiles of rows, as many tiles of columns as there can be
KERNEL(id_tiles, 128, Node<3>)
{
    if (n.fault[0] != 0) return;
    const Columns c = columns_of(n, blockIdx.y, TILE);
    if (c.count > 0) tile(n, c, (i64)blockIdx.x * TILE, 0);
}
