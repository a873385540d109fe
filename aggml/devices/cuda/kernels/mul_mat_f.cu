// Products with a matrix of f32, f16 or bf16: mul_mat and mul_mat_id; b is f32 or of the type of a.
//
// Few columns: a warp computes two rows, its lanes go along the depth. Many: tiles of 64 rows by 64 columns, f16 and
// bf16 on tensor cores (b is rounded to the type of a, as in ggml), f32 by fused multiply-add. The depth is split over
// blocks if there are few tiles. Not here: f16 and bf16 with 9 to 64 columns (mul_mat_f_ring.cu).
#include "columns.cuh"
#include "mma.cuh"

template <class T> DEV float b_element(i64 type, const char *column, i64 k)
{
    return type == F32 ? ((const float *)column)[k] : to_float(((const T *)column)[k]);
}

// A vector of 16 bytes, and its elements of T.
template <class T> union Sixteen {
    enum { V = 16 / sizeof(T) };
    uint4 words;
    T elements[V];
};

template <class T> DEV void elements_of(float y[16 / sizeof(T)], i64 type, const char *column, i64 k)
{
    enum { V = 16 / sizeof(T) };
    if (type == F32) {
#pragma unroll
        for (int v = 0; v < V; v += 4) {
            const float4 four = *(const float4 *)(column + 4 * (k + v));
            y[v] = four.x, y[v + 1] = four.y, y[v + 2] = four.z, y[v + 3] = four.w;
        }
        return;
    }
    Sixteen<T> w;
    w.words = *(const uint4 *)(column + k * sizeof(T));
#pragma unroll
    for (int v = 0; v < V; ++v) y[v] = to_float(w.elements[v]);
}

enum { ROWS = 2 }; // of a warp

// Sums of rows a[] times columns x[], by all lanes of a warp. aux[1]: whether rows of a and of b begin at multiples of
// 16 bytes
template <class T, int N, class Args>
DEV void vec_sums(float sum[ROWS][N], const Args &n, const char *const a[ROWS], const char *const x[N])
{
    enum { V = 16 / sizeof(T) };
    const i64 depth = n.src[0].ne[0], type = n.src[1].type;
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int j = 0; j < N; ++j) sum[r][j] = 0.0f;
    }
    i64 k = 0;
    if (n.aux[1] != 0) {
#pragma unroll(N > 2 ? 1 : 2)
        for (k = lane * V; k + V <= depth; k += 32 * V) {
            Sixteen<T> w[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) w[r].words = *(const uint4 *)(a[r] + k * sizeof(T));
#pragma unroll
            for (int j = 0; j < N; ++j) {
                float y[V];
                elements_of<T>(y, type, x[j], k);
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
#pragma unroll
                    for (int v = 0; v < V; ++v) sum[r][j] += to_float(w[r].elements[v]) * y[v];
                }
            }
        }
        k = depth / V * V;
    }
    for (k += lane; k < depth; k += 32) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const float w = to_float(((const T *)a[r])[k]);
#pragma unroll
            for (int j = 0; j < N; ++j) sum[r][j] += w * b_element<T>(type, x[j], k);
        }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) sum[r][j] = warp_sum(sum[r][j]);
    }
}

template <class Args> DEV void rows_from(const char *a[ROWS], const Args &n, const char *matrix, i64 row)
{
    const i64 m = n.dst.ne[0];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) a[r] = matrix + (row + r < m ? row + r : m - 1) * n.src[0].nb[1];
}

// Rows row .. row + ROWS - 1 times columns first .. first + N - 1.
template <class T, int N, class Args> DEV void vec(const Args &n, const Columns &c, i64 row, i64 first)
{
    const char *a[ROWS], *x[N];
    float sum[ROWS][N];
    rows_from(a, n, c.a, row);
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = column_at(n, c, slot_at(c, first + j < c.count ? first + j : c.count - 1));
    vec_sums<T, N>(sum, n, a, x);
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if ((threadIdx.x & 31) == 0 && row + r < n.dst.ne[0] && first + j < c.count) {
                put(n, c, row + r, slot_at(c, first + j), sum[r][j]);
            }
        }
    }
}

// The gated unit of two products with one column: ROWS rows, from `row` on, of two matrices of the same shape.
template <class T, class Args> DEV void pair(const Args &n, const Columns &c, i64 row)
{
    const i64 slot = slot_at(c, 0);
    const char *a[ROWS], *x[1] = {column_at(n, c, slot)};
    float one[ROWS], sum[ROWS][1] = {};
#pragma unroll 1
    for (int which = 0; which < 2; ++which) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) one[r] = sum[r][0];
        rows_from(a, n, which == 0 ? c.a : other_matrix(n, c), row);
        vec_sums<T, 1>(sum, n, a, x);
    }
    float *y = (float *)result_at(n, c, slot);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if ((threadIdx.x & 31) == 0 && row + r < n.dst.ne[0]) y[row + r] = unit_of(n, one[r], sum[r][0]);
    }
}

// grid: rows / 8, batches. aux[0]: the first column
template <class T, int N> DEV void vec_columns(const Node<2> &n)
{
    const i64 row = ((i64)blockIdx.x * 4 + (threadIdx.x >> 5)) * ROWS;
    if (row >= n.dst.ne[0]) return;
    for (i64 batch = blockIdx.y; batch < n.dst.ne[2] * n.dst.ne[3]; batch += gridDim.y) {
        vec<T, N>(n, columns_of(n, batch), row, n.aux[0]);
    }
}

template <class T> DEV void pair_1(const Node<2> &n)
{
    const i64 row = ((i64)blockIdx.x * 4 + (threadIdx.x >> 5)) * ROWS;
    if (row < n.dst.ne[0]) pair<T>(n, columns_of(n, 0), row);
}

// grid: rows / 8, slots. PAIR: the gated unit of two matrices, as in pair_1
template <class T, bool PAIR> DEV void id_columns(const Node<3> &n)
{
    if (n.fault[0] != 0) return;
    const i64 row = ((i64)blockIdx.x * 4 + (threadIdx.x >> 5)) * ROWS;
    if (row >= n.dst.ne[0]) return;
    for (i64 slot = blockIdx.y; slot < slots_of(n); slot += gridDim.y) {
        Columns c;
        if (!column_of_slot(n, slot, c)) {
            zero_rows(n, c, slot, row, ROWS);
        } else if (PAIR) {
            pair<T>(n, c, row);
        } else {
            vec<T, 1>(n, c, row, 0);
        }
    }
}

enum { DEPTH = 32 };

// Elements k .. k + 15 of a row of T or f32 as pairs of T; zeros beyond depth.
template <class T> DEV void fetch(u32 out[8], const char *row, i64 type, i64 k, i64 depth, bool aligned)
{
#pragma unroll
    for (int w = 0; w < 8; ++w) out[w] = 0;
    if (row == 0 || k >= depth) return;
    if (aligned && k + 16 <= depth) {
        if (type == F32) {
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                const float4 x = ((const float4 *)(row + 4 * k))[w];
                out[2 * w] = pair_of<T>(x.x, x.y);
                out[2 * w + 1] = pair_of<T>(x.z, x.w);
            }
        } else {
#pragma unroll
            for (int w = 0; w < 2; ++w) {
                const uint4 x = ((const uint4 *)(row + 2 * k))[w];
                out[4 * w] = x.x;
                out[4 * w + 1] = x.y;
                out[4 * w + 2] = x.z;
                out[4 * w + 3] = x.w;
            }
        }
        return;
    }
#pragma unroll
    for (int w = 0; w < 8; ++w) {
        const i64 e = k + 2 * w;
        if (e >= depth) continue;
        if (type == F32) {
            out[w] = pair_of<T>(((const float *)row)[e], e + 1 < depth ? ((const float *)row)[e + 1] : 0.0f);
        } else {
            const u16 *x = (const u16 *)row;
            out[w] = x[e] | (e + 1 < depth ? (u32)x[e + 1] << 16 : 0);
        }
    }
}

// The tile that begins at `row` and column `first`. aux[1]: whether all rows begin at multiples of 16 bytes
template <class T, class Args>
DEV void tile(const Args &n, const Columns &c, const Part &part, i64 row, i64 first)
{
    enum { I = Shape::I, J = Shape::J };
    __shared__ __align__(16) TileRow a_t[TILE], b_t[TILE];
    const Shape shape;
    const i64 depth = part.end * 32 < n.src[0].ne[0] ? part.end * 32 : n.src[0].ne[0], type = n.src[1].type;
    const bool aligned = n.aux[1] != 0;
    const int mine = threadIdx.x / 2, half = threadIdx.x % 2;
    const bool column = first + mine < c.count;
    const char *my_a = row + mine < n.dst.ne[0] ? c.a + (row + mine) * n.src[0].nb[1] : 0;
    const char *my_b = column ? column_at(n, c, slot_at(c, first + mine)) : 0;
    float sum[I][J][4];
#pragma unroll
    for (int i = 0; i < I; ++i) {
#pragma unroll
        for (int j = 0; j < J; ++j) sum[i][j][0] = sum[i][j][1] = sum[i][j][2] = sum[i][j][3] = 0.0f;
    }
    u32 x[8], y[8];
    fetch<T>(x, my_a, Type<T>::number, part.begin * 32 + 16 * half, depth, aligned);
    fetch<T>(y, my_b, type, part.begin * 32 + 16 * half, depth, aligned);
    for (i64 k = part.begin * 32; k < depth; k += DEPTH) {
        __syncthreads();
#pragma unroll
        for (int w = 0; w < 8; w += 4) {
            *(uint4 *)&a_t[mine][8 * half + w] = make_uint4(x[w], x[w + 1], x[w + 2], x[w + 3]);
            *(uint4 *)&b_t[mine][8 * half + w] = make_uint4(y[w], y[w + 1], y[w + 2], y[w + 3]);
        }
        __syncthreads();
        if (k + DEPTH < depth) { // loaded while the tensor cores multiply the previous tile
            fetch<T>(x, my_a, Type<T>::number, k + DEPTH + 16 * half, depth, aligned);
            fetch<T>(y, my_b, type, k + DEPTH + 16 * half, depth, aligned);
        }
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            u32 b[J][2];
#pragma unroll
            for (int j = 0; j < J; ++j) load_b(b[j], b_t, shape.to_column + 8 * j, s);
#pragma unroll
            for (int i = 0; i < I; ++i) {
                u32 a[4];
                load_a(a, a_t, shape.to_row + 16 * i, s);
#pragma unroll
                for (int j = 0; j < J; ++j) {
                    if (Type<T>::number == F16)
                        mma_half(sum[i][j], a, b[j]);
                    else
                        mma_bf16(sum[i][j], a, b[j]);
                }
            }
        }
    }
    write_tile(n, c, part, shape, row, first, sum);
}

// f32: 128 threads, each with 8 rows (8 apart) by 4 columns (16 apart) of the tile, so that lanes access different
// banks.
template <class Args> DEV void tile_f32(const Args &n, const Columns &c, const Part &part, i64 row, i64 first)
{
    enum { K = 16 };
    __shared__ float a_t[K][TILE + 4], b_t[K][TILE + 4];
    const i64 m = n.dst.ne[0], depth = part.end * 32 < n.src[0].ne[0] ? part.end * 32 : n.src[0].ne[0];
    const int tx = threadIdx.x % 8, ty = threadIdx.x / 8;
    const int mine = threadIdx.x / 2, half = threadIdx.x % 2 * 8;
    const float *my_a = row + mine < m ? (const float *)(c.a + (row + mine) * n.src[0].nb[1]) : 0;
    const float *my_b = first + mine < c.count ? (const float *)column_at(n, c, slot_at(c, first + mine)) : 0;
    float sum[8][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] = 0.0f;
    }
    for (i64 k0 = part.begin * 32; k0 < depth; k0 += K) {
        __syncthreads();
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const i64 k = k0 + half + e;
            a_t[half + e][mine] = my_a != 0 && k < depth ? my_a[k] : 0.0f;
            b_t[half + e][mine] = my_b != 0 && k < depth ? my_b[k] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < K; ++k) {
            float x[8], y[4];
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] = a_t[k][tx + 8 * i];
#pragma unroll
            for (int j = 0; j < 4; ++j) y[j] = b_t[k][ty + 16 * j];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[i][j] += x[i] * y[j];
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const i64 column = first + ty + 16 * j;
        if (column >= c.count) continue;
        float *y = sums_at(n, c, part, slot_at(c, column));
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (row + tx + 8 * i < m) y[row + tx + 8 * i] = sum[i][j];
        }
    }
}

template <class Args>
DEV void any_tile(float, const Args &n, const Columns &c, const Part &part, i64 row, i64 first)
{
    tile_f32(n, c, part, row, first);
}
template <class T, class Args>
DEV void any_tile(T, const Args &n, const Columns &c, const Part &part, i64 row, i64 first)
{
    tile<T>(n, c, part, row, first);
}

// grid: tiles of rows, tiles of columns, batches and parts of the depth
template <class T> DEV void tiles(const Node<2> &n)
{
    i64 batch, which;
    for (i64 z = blockIdx.z; z < n.dst.ne[2] * n.dst.ne[3] * n.aux[2]; z += gridDim.z) {
        divide(z, n.aux[2], &batch, &which);
        for (i64 first = (i64)blockIdx.y * TILE; first < n.dst.ne[1]; first += (i64)gridDim.y * TILE) {
            any_tile(T(), n, columns_of(n, batch), part_of(n, which), (i64)blockIdx.x * TILE, first);
        }
    }
}

template <class T> DEV void id_tiles(const Node<3> &n)
{
    if (n.fault[0] != 0) return;
    const Columns c = columns_of(n, blockIdx.y, TILE);
    if (c.count > 0) any_tile(T(), n, c, part_of(n, 0), (i64)blockIdx.x * TILE, 0);
}

#define EACH(name, T) \
    KERNEL(vec_1_##name, 128, Node<2>) { vec_columns<T, 1>(n); } \
    KERNEL(vec_2_##name, 128, Node<2>) { vec_columns<T, 2>(n); } \
    KERNEL(vec_4_##name, 128, Node<2>) { vec_columns<T, 4>(n); } \
    KERNEL(vec_8_##name, 128, Node<2>) { vec_columns<T, 8>(n); } \
    KERNEL(pair_1_##name, 128, Node<2>) { pair_1<T>(n); } \
    KERNEL(id_vec_##name, 128, Node<3>) { id_columns<T, false>(n); } \
    KERNEL(id_pair_##name, 128, Node<3>) { id_columns<T, true>(n); } \
    KERNEL(tiles_64_##name, 128, Node<2>) { tiles<T>(n); } \
    KERNEL(id_tiles_##name, 128, Node<3>) { id_tiles<T>(n); }
EACH(f32, float)
EACH(f16, half_t)
EACH(bf16, bf16_t)
