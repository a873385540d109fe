// Products with a matrix of the quantized type TYPE: mul_mat and mul_mat_id on columns that are int8 (columns.cu).
//
// Few columns: a warp for two rows of a, lanes along the depth, dp4a. Many: tiles of 64 x 64 on tensor cores; each 32 of
// the depth are multiplied as integers and then scaled.
#include "columns.cuh"
#include "mma.cuh"
#include "quant.cuh"

enum { ROWS = 2 }; // of a warp: an Act is read once for all of them

// Rows row .. row + 1 times columns first .. first + N - 1 (those beyond count are not written).
template <int N, class Args> DEV void few(const Args &n, const Columns &c, i64 row, i64 first)
{
    const i64 m = n.dst.ne[0], groups = n.src[0].ne[0] / 32;
    const int lane = threadIdx.x & 31;
    const char *a[ROWS];
    const Act *x[N];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) a[r] = c.a + (row + r < m ? row + r : m - 1) * n.src[0].nb[1];
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
    for (i64 g = lane; g < groups; g += 32) {
        Group o[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) unpack_row<TYPE>(a[r], g, o[r]);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const int4 low = *(const int4 *)&x[j][g].q[0], high = *(const int4 *)&x[j][g].q[4];
            const float4 scale = *(const float4 *)&x[j][g].d;
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const int *q = o[r].q;
                const int dot0 = __dp4a(q[3], low.w, __dp4a(q[2], low.z, __dp4a(q[1], low.y, __dp4a(q[0], low.x, 0))));
                const int dot1 =
                    __dp4a(q[7], high.w, __dp4a(q[6], high.z, __dp4a(q[5], high.y, __dp4a(q[4], high.x, 0))));
                const float dot = Block<TYPE>::halves ? o[r].d[0] * (float)dot0 + o[r].d[1] * (float)dot1
                                                      : o[r].d[0] * (float)(dot0 + dot1);
                sum[r][j] += dot * scale.x;
                if (Block<TYPE>::mins) sum[r][j] += o[r].m[0] * scale.y + o[r].m[1] * scale.z;
            }
        }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const float total = warp_sum(sum[r][j]);
            if (lane == 0 && row + r < m && first + j < c.count) {
                ((float *)result_at(n, c, slot_at(c, first + j)))[row + r] = total;
            }
        }
    }
}

// grid: rows / 8, batches. aux[0]: the first column
template <int N> DEV void few_columns(const Node<2> &n)
{
    const i64 row = ((i64)blockIdx.x * 4 + (threadIdx.x >> 5)) * ROWS;
    if (row >= n.dst.ne[0]) return;
    for (i64 batch = blockIdx.y; batch < n.dst.ne[2] * n.dst.ne[3]; batch += gridDim.y) {
        few<N>(n, columns_of(n, batch), row, n.aux[0]);
    }
}

KERNEL(few_1, 128, Node<2>) { few_columns<1>(n); }
KERNEL(few_2, 128, Node<2>) { few_columns<2>(n); }
KERNEL(few_4, 128, Node<2>) { few_columns<4>(n); }

// grid: rows / 8, slots
KERNEL(id_few, 128, Node<3>)
{
    if (n.fault[0] != 0) return;
    const i64 row = ((i64)blockIdx.x * 4 + (threadIdx.x >> 5)) * ROWS, used = n.src[2].ne[0];
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
            few<1>(n, c, row, 0);
        } else if ((threadIdx.x & 31) < ROWS && row + (threadIdx.x & 31) < n.dst.ne[0]) {
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
