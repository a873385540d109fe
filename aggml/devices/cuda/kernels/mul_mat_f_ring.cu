// Products of 9 to 64 columns with a matrix of f16 or bf16, by a ring of stages (ring.cuh); b is f32 or of the type of
// a.
//
// A stage is 64 rows by 64 elements of the depth, as they are in memory, and the same depth of the columns. Fragments
// of the matrix are loaded from it by ldmatrix. Columns of f32 are rounded to the type of a before the tensor cores get
// them, as in ggml. Not here: fewer and more columns, f32 (mul_mat_f.cu).
#include "ring.cuh"

enum { DEEP = 64 }; // elements of the depth of a stage

// Rows are padded by 16 bytes, so that 8 of them fall into different banks; columns of f32 are padded by 32 bytes.
template <int WIDE> struct Stage {
    __align__(16) u32 a[TILE][DEEP / 2 + 4];
    __align__(16) float b[WIDE][DEEP + 8]; // or elements of T, in rows of the size of those of a
};

// What a thread loads of each stage: a vector of 16 bytes of every 16th row, and of every 8th or 16th column. Stages
// are loaded in order.
struct Source {
    const char *a, *b;  // the next vector of its first row, of its first column
    i64 a_step, b_step; // to its next row, its next column
    i64 left;           // elements of the depth still to load
    Place to_a, to_b;   // destinations in the first stage of the ring
    int rows, columns;  // of the tile, from this thread's first row or column on
    bool wide, whole;   // columns are f32; each vector is aligned and wholly inside or outside of the depth
};

template <class T, int WIDE>
DEV Source source(const Node<2> &n, const Columns &c, Stage<WIDE> *ring, i64 begin, i64 row, i64 first)
{
    const Tensor &a = n.src[0], &b = n.src[1];
    const int each = b.type == F32 ? 16 : 8, to_row = threadIdx.x / 8, to_column = threadIdx.x / each;
    Source x;
    x.wide = b.type == F32;
    x.left = a.ne[0] - begin * DEEP;
    x.whole = n.aux[1] != 0 && a.ne[0] % 8 == 0;
    x.a = c.a + (row + to_row) * a.nb[1] + begin * (DEEP * 2) + threadIdx.x % 8 * 16;
    x.b = column_at(n, c, 0) + (first + to_column) * b.nb[1] + begin * (DEEP * 2 * (x.wide ? 2 : 1)) +
          threadIdx.x % each * 16;
    x.a_step = 16 * a.nb[1];
    x.b_step = 128 / each * b.nb[1];
    x.rows = (int)(n.dst.ne[0] - row < TILE ? n.dst.ne[0] - row : TILE) - to_row;
    x.columns = (int)(c.count - first < WIDE ? c.count - first : WIDE) - to_column;
    x.to_a = place_of(&ring->a[to_row][threadIdx.x % 8 * 4]);
    x.to_b = x.wide ? place_of(&ring->b[to_column][threadIdx.x % 16 * 4])
                    : place_of((u32 *)ring->b + to_column * (DEEP / 2 + 4) + threadIdx.x % 8 * 4);
    return x;
}

// Brings 16 bytes of elements of T, maybe asynchronously. The first `there` of them are in the depth, others are zeros.
template <class T> DEV void bring16(Place place, void *to, const char *from, i64 there, bool whole)
{
    enum { V = 16 / sizeof(T) };
    if (whole) {
        copy_async_to(place, from, there > 0);
        return;
    }
    T *y = (T *)to;
#pragma unroll
    for (int v = 0; v < V; ++v) {
        T zero;
        from_float(0.0f, &zero);
        y[v] = v < there ? ((const T *)from)[v] : zero;
    }
}

// A thread loads every EVERY-th column. BYTES: size of a column in shared memory
template <class T, int EVERY, int BYTES, int WIDE> DEV void bring_columns(Source &x, Stage<WIDE> &t, int ahead)
{
    enum { PER = 128 / EVERY }; // vectors of a column
    const int mine = threadIdx.x % PER;
    char *to = (char *)t.b + threadIdx.x / PER * BYTES + mine * 16;
    const char *from = x.b;
#pragma unroll
    for (int i = 0; i < WIDE / EVERY; ++i) {
        const i64 there = i * EVERY < x.columns ? x.left - mine * (16 / (int)sizeof(T)) : 0;
        bring16<T>(x.to_b + ahead + i * EVERY * BYTES, to + i * EVERY * BYTES, from, there, x.whole);
        from += x.b_step;
    }
    x.b += PER * 16;
}

template <class T, int WIDE> DEV void bring(Stage<WIDE> *ring, Source &x, int slot)
{
    enum { ROW = sizeof(Stage<WIDE>::a[0]) };
    Stage<WIDE> &t = ring[slot];
    const int ahead = slot * (int)sizeof(Stage<WIDE>), mine = threadIdx.x % 8;
    char *to = (char *)t.a + threadIdx.x / 8 * ROW + mine * 16;
    const char *from = x.a;
#pragma unroll
    for (int r = 0; r < TILE; r += 16) {
        bring16<T>(x.to_a + ahead + r * ROW, to + r * ROW, from, r < x.rows ? x.left - 8 * mine : 0, x.whole);
        from += x.a_step;
    }
    x.a += DEEP * 2;
    if (x.wide)
        bring_columns<float, 8, sizeof(Stage<WIDE>::b[0])>(x, t, ahead);
    else
        bring_columns<T, 16, ROW>(x, t, ahead);
    x.left -= DEEP;
}

// Columns 8 j .. 8 j + 15 in step s of a stage.
template <class T, int WIDE>
DEV void columns_of_step(u32 b[4], const Stage<WIDE> &t, const Halves<WIDE> &shape, i64 type, int j, int s)
{
    const int lane = threadIdx.x & 31;
    if (type != F32) {
        const int column = 8 * j + (lane & 7) + lane / 16 * 8, word = 8 * s + lane / 8 % 2 * 4;
        load_matrices<false>(b, (const u32 *)t.b + column * (DEEP / 2 + 4) + word);
        return;
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        const float2 x = *(const float2 *)&t.b[8 * (j + w / 2) + shape.group][16 * s + w % 2 * 8 + 2 * shape.member];
        b[w] = pair_of<T>(x.x, x.y);
    }
}

template <class T, int WIDE>
DEV void multiply(float sum[2][WIDE / 8][4], const Stage<WIDE> &t, const Halves<WIDE> &shape, i64 type, int s)
{
    const int lane = threadIdx.x & 31;
    u32 a[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        load_matrices<false>(a[i], &t.a[shape.to_row + 16 * i + (lane & 15)][8 * s + 4 * (lane >> 4)]);
    }
#pragma unroll
    for (int j = 0; j < WIDE / 8; j += 2) {
        u32 b[4];
        columns_of_step<T>(b, t, shape, type, j, s);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if (Type<T>::number == F16)
                    mma_half(sum[i][j + k], a[i], &b[2 * k]);
                else
                    mma_bf16(sum[i][j + k], a[i], &b[2 * k]);
            }
        }
    }
}

// The tile that begins at `row` and column `first`. aux[1]: whether all rows begin at multiples of 16 bytes, aux[5]:
// stages of the ring
template <class T, int WIDE> DEV void tile(const Node<2> &n, const Columns &c, const Part &part, i64 row, i64 first)
{
    SHARED(Stage<WIDE>, ring);
    const Halves<WIDE> shape;
    const i64 depth = n.src[0].ne[0], end = part.end * 32 < depth ? part.end * 32 : depth;
    const i64 begin = part.begin * 32 / DEEP, type = n.src[1].type;
    Source x = source<T>(n, c, ring, begin, row, first);
    float sum[2][WIDE / 8][4];
    clear<WIDE>(sum);
    around((int)begin, (int)((end + DEEP - 1) / DEEP), (int)n.aux[5], [&](int slot, int) { bring<T>(ring, x, slot); },
           [&](int slot, int) {
#pragma unroll
               for (int s = 0; s < DEEP / 32; ++s) {
                   multiply<T>(sum, ring[slot], shape, type, 2 * s + shape.half);
               }
           });
    meet_and_write<WIDE>(n, c, part, shape, row, first, sum, (float *)ring);
}

// grid: tiles of rows, tiles of columns, batches and parts of the depth
template <class T, int WIDE> DEV void tiles(const Node<2> &n)
{
    i64 batch, which;
    for (i64 z = blockIdx.z; z < n.dst.ne[2] * n.dst.ne[3] * n.aux[2]; z += gridDim.z) {
        divide(z, n.aux[2], &batch, &which);
        tile<T, WIDE>(n, columns_of(n, batch), part_of(n, which), (i64)blockIdx.x * TILE, (i64)blockIdx.y * WIDE);
    }
}

#define EACH_WIDTH(name, T) \
    KERNEL_OF(tiles_16_##name, 128, 3, Node<2>) \
    { \
        tiles<T, 16>(n); \
    } \
    KERNEL_OF(tiles_32_##name, 128, 3, Node<2>) \
    { \
        tiles<T, 32>(n); \
    } \
    KERNEL_OF(tiles_64_##name, 128, 3, Node<2>) \
    { \
        tiles<T, 64>(n); \
    }
EACH_WIDTH(f16, half_t)
EACH_WIDTH(bf16, bf16_t)
