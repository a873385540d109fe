// Products with a matrix of the quantized type TYPE: mul_mat and mul_mat_id on columns that are int8 (columns.cu).
//
// Few columns: a warp goes along the depth, each lane multiplies a group of 32 elements by dp4a. The number of cache
// lines that a warp's loads touch limits its speed. Blocks have odd sizes, so a warp copies 32 groups of some rows to
// shared memory in loads of 16 bytes and unpacks them there, while the next 32 groups are loaded. Many columns: tiles
// of 64 rows by 64 columns on tensor cores; each 32 of the depth are multiplied as integers and then scaled. If there
// are fewer tiles than multiprocessors, the depth is split over blocks. Not here: 9 to 32 columns (mul_mat_q_ring.cu).
// for each type: quantized
#include "vec_q.cuh"
#include "mma.cuh"

// Some rows, from `row` on, times columns first .. first + N - 1; columns beyond count are not written. With `split`,
// the warps of a block have the same rows and every fourth 32 groups each; else each warp has rows of its own.
template <int N, class Args> DEV void vec(const Args &n, const Columns &c, i64 row, i64 first, bool split)
{
    enum { ROWS = Width<N>::rows };
    __shared__ Vec<N> f;
    const i64 m = n.dst.ne[0], groups = n.src[0].ne[0] / 32, nb = n.src[0].nb[1];
    const int last = row + ROWS <= m ? ROWS - 1 : (int)(m - 1 - row);
    const Act *x[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
        const i64 slot = slot_at(c, first + j < c.count ? first + j : c.count - 1);
        x[j] = acts(n) + row_of(n, c, slot) * groups;
    }
    vec_parts<N>(f, c.a + row * nb, nb, last, x, groups, split);
    meet(split);
    // A thread for each result: the op that is fused after the product then needs registers for one result only.
    const int mine = split ? threadIdx.x : threadIdx.x & 31, r = mine / N, j = mine % N;
    if (r < ROWS && row + r < m && first + j < c.count) {
        put(n, c, row + r, slot_at(c, first + j), total_of(f, mine, split));
    }
    meet(split);
}

// The gated unit of two products with one column: some rows, from `row` on, of two matrices of the same shape.
template <class Args> DEV void pair(const Args &n, const Columns &c, i64 row, bool split)
{
    enum { ROWS = Width<1>::rows };
    __shared__ Vec<1> f;
    const i64 m = n.dst.ne[0], groups = n.src[0].ne[0] / 32, nb = n.src[0].nb[1];
    const int last = row + ROWS <= m ? ROWS - 1 : (int)(m - 1 - row);
    const int mine = split ? threadIdx.x : threadIdx.x & 31;
    const i64 slot = slot_at(c, 0);
    const Act *x[1] = {acts(n) + row_of(n, c, slot) * groups};
    float one = 0.0f, total = 0.0f;
#pragma unroll 1
    for (int which = 0; which < 2; ++which) {
        one = total;
        vec_parts<1>(f, (which == 0 ? c.a : other_matrix(n, c)) + row * nb, nb, last, x, groups, split);
        meet(split);
        if (mine < ROWS) total = total_of(f, mine, split);
        meet(split);
    }
    if (mine < ROWS && row + mine < m) ((float *)result_at(n, c, slot))[row + mine] = unit_of(n, one, total);
}

// The first row of a warp, and whether its block's warps share rows. aux[2]: rows of a block
template <int N, class Args> DEV i64 row_of_warp(const Args &n, bool *split)
{
    *split = n.aux[2] == Width<N>::rows;
    return (i64)blockIdx.x * n.aux[2] + (*split ? 0 : (threadIdx.x >> 5) * Width<N>::rows);
}

// grid: rows / aux[2], batches. aux[0]: the first column
template <int N> DEV void vec_columns(const Node<2> &n)
{
    bool split;
    const i64 row = row_of_warp<N>(n, &split);
    if (row >= n.dst.ne[0]) return;
    for (i64 batch = blockIdx.y; batch < n.dst.ne[2] * n.dst.ne[3]; batch += gridDim.y) {
        vec<N>(n, columns_of(n, batch), row, n.aux[0], split);
    }
}

// Enough bytes must be in flight to keep the memory busy: four blocks are 16 warps with 2 KiB each. On GPUs with three
// blocks here, the kernel takes more registers.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200)
enum { FIT = 3 };
#else
enum { FIT = 4 };
#endif

KERNEL_OF(vec_1, 128, FIT, Node<2>) { vec_columns<1>(n); }
// With three blocks, NVFP4 would lack one register, and IQ4_XS two on sm_75.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
enum { FIT_2 = TYPE == NVFP4 || TYPE == IQ4_XS ? 2 : 3 };
#else
enum { FIT_2 = TYPE == NVFP4 ? 2 : 3 };
#endif

KERNEL_OF(vec_2, 128, FIT_2, Node<2>) { vec_columns<2>(n); }
// grid: as vec_1
KERNEL_OF(pair_1, 128, FIT, Node<2>)
{
    bool split;
    const i64 row = row_of_warp<1>(n, &split);
    if (row < n.dst.ne[0]) pair(n, columns_of(n, 0), row, split);
}

KERNEL_OF(vec_4, 128, 2, Node<2>) { vec_columns<4>(n); }
KERNEL_OF(vec_8, 128, 2, Node<2>) { vec_columns<8>(n); }

// grid: rows / aux[2], slots. PAIR: the gated unit of two matrices, as in pair_1
template <bool PAIR> DEV void id_columns(const Node<3> &n)
{
    if (n.fault[0] != 0) return;
    bool split;
    const i64 row = row_of_warp<1>(n, &split);
    if (row >= n.dst.ne[0]) return;
    for (i64 slot = blockIdx.y; slot < slots_of(n); slot += gridDim.y) {
        Columns c;
        if (!column_of_slot(n, slot, c)) {
            zero_rows(n, c, slot, row, Width<1>::rows);
        } else if (PAIR) {
            pair(n, c, row, split);
        } else {
            vec<1>(n, c, row, 0, split);
        }
    }
}

KERNEL_OF(id_vec, 128, FIT, Node<3>) { id_columns<false>(n); }
// With four blocks, five types would lack some registers.
KERNEL_OF(id_pair, 128, 3, Node<3>) { id_columns<true>(n); }

enum { STEPS = 2 }; // depth of a tile in units of 32

// A tile in shared memory: codes, scales, minima of a; codes, scales, sums of b.
struct Staged {
    __align__(16) TileRow a_q[TILE];
    __align__(16) TileRow b_q[TILE];
    float a_d[TILE][STEPS][2], a_m[TILE][STEPS][2], b_d[TILE][STEPS], b_s[TILE][STEPS][2];
};

// What a thread loads for a tile: 32 elements of a row of a, and 32 of a column.
struct Brought {
    Group a;
    Act b;
};

DEV void bring(Brought &o, const char *a, const Act *b, i64 g, bool real)
{
#pragma unroll
    for (int k = 0; k < 8; ++k) o.a.q[k] = o.b.q[k] = 0;
    o.a.d[0] = o.a.d[1] = o.a.m[0] = o.a.m[1] = 0.0f;
    o.b.d = o.b.s[0] = o.b.s[1] = 0.0f;
    if (real && a != 0) unpack_row<TYPE>(a, g, o.a);
    if (real && b != 0) o.b = b[g];
}

DEV void put(Staged &t, const Brought &o, int mine, int step)
{
    *(int4 *)&t.a_q[mine][8 * step] = make_int4(o.a.q[0], o.a.q[1], o.a.q[2], o.a.q[3]);
    *(int4 *)&t.a_q[mine][8 * step + 4] = make_int4(o.a.q[4], o.a.q[5], o.a.q[6], o.a.q[7]);
    t.a_d[mine][step][0] = o.a.d[0];
    t.a_d[mine][step][1] = o.a.d[1];
    t.a_m[mine][step][0] = o.a.m[0];
    t.a_m[mine][step][1] = o.a.m[1];
    *(int4 *)&t.b_q[mine][8 * step] = make_int4(o.b.q[0], o.b.q[1], o.b.q[2], o.b.q[3]);
    *(int4 *)&t.b_q[mine][8 * step + 4] = make_int4(o.b.q[4], o.b.q[5], o.b.q[6], o.b.q[7]);
    t.b_d[mine][step] = o.b.d;
    t.b_s[mine][step][0] = o.b.s[0];
    t.b_s[mine][step][1] = o.b.s[1];
}

DEV void multiply(float sum[Shape::I][Shape::J][4], const Staged &t, const Shape &shape, int s)
{
    enum { I = Shape::I, J = Shape::J };
    u32 b[J][2];
#pragma unroll
    for (int j = 0; j < J; ++j) load_b(b[j], t.b_q, shape.to_column + 8 * j, s);
#pragma unroll
    for (int i = 0; i < I; ++i) {
        u32 a[4];
        load_a(a, t.a_q, shape.to_row + 16 * i, s);
        const int top = shape.to_row + 16 * i + shape.group;
#pragma unroll
        for (int j = 0; j < J; ++j) {
            const int column = shape.to_column + 8 * j + 2 * shape.member;
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
                float dot = t.a_d[y][s][0] * (float)low[r];
                if (Block<TYPE>::halves) dot += t.a_d[y][s][1] * (float)high[r];
                sum[i][j][r] += dot * t.b_d[z][s];
                if (Block<TYPE>::mins) {
                    sum[i][j][r] += t.a_m[y][s][0] * t.b_s[z][s][0] + t.a_m[y][s][1] * t.b_s[z][s][1];
                }
            }
        }
    }
}

// The tile that begins at `row` and column `first`. Data for the next step is loaded while the tensor cores multiply.
template <class Args> DEV void tile(const Args &n, const Columns &c, const Part &part, i64 row, i64 first)
{
    enum { I = Shape::I, J = Shape::J };
    __shared__ Staged t;
    const Shape shape;
    const i64 groups = n.src[0].ne[0] / 32;
    const int mine = threadIdx.x / STEPS, step = threadIdx.x % STEPS; // a row, a column
    const bool column = first + mine < c.count;
    const char *my_a = row + mine < n.dst.ne[0] ? c.a + (row + mine) * n.src[0].nb[1] : 0;
    const Act *my_b = column ? acts(n) + row_of(n, c, slot_at(c, first + mine)) * groups : 0;
    float sum[I][J][4];
#pragma unroll
    for (int i = 0; i < I; ++i) {
#pragma unroll
        for (int j = 0; j < J; ++j) sum[i][j][0] = sum[i][j][1] = sum[i][j][2] = sum[i][j][3] = 0.0f;
    }
    Brought o;
    bring(o, my_a, my_b, part.begin + step, part.begin + step < part.end);
    for (i64 g = part.begin; g < part.end; g += STEPS) {
        __syncthreads();
        put(t, o, mine, step);
        __syncthreads();
        if (g + STEPS < part.end) bring(o, my_a, my_b, g + STEPS + step, g + STEPS + step < part.end);
#pragma unroll
        for (int s = 0; s < STEPS; ++s) multiply(sum, t, shape, s);
    }
    write_tile(n, c, part, shape, row, first, sum);
}

// grid: tiles of rows, tiles of columns, batches and parts of the depth
DEV void tiles(const Node<2> &n)
{
    i64 batch, which;
    for (i64 z = blockIdx.z; z < n.dst.ne[2] * n.dst.ne[3] * n.aux[2]; z += gridDim.z) {
        divide(z, n.aux[2], &batch, &which);
        for (i64 first = (i64)blockIdx.y * TILE; first < n.dst.ne[1]; first += (i64)gridDim.y * TILE) {
            tile(n, columns_of(n, batch), part_of(n, which), (i64)blockIdx.x * TILE, first);
        }
    }
}

KERNEL(tiles_64, 128, Node<2>) { tiles(n); }

// grid: tiles of rows, as many tiles of columns as there can be
KERNEL(id_tiles, 128, Node<3>)
{
    if (n.fault[0] != 0) return;
    const Columns c = columns_of(n, blockIdx.y, TILE);
    if (c.count > 0) tile(n, c, part_of(n, 0), (i64)blockIdx.x * TILE, 0);
}
