// Products of 9 to 64 columns with a matrix of f16 or bf16, by a ring of stages (ring.cuh); b is f32 or of the type of
// a.
//
// A stage is 64 rows by 64 of the depth, as it lies in memory, and as much of the columns. Fragments of the matrix come
// from it by ldmatrix; columns of f32 are rounded to the type of a on their way to the tensor cores, as in ggml. Not
// here: fewer and more columns, f32 (mul_mat_f.cu).
#include "ring.cuh"

enum { DEEP = 64 }; // elements of a stage

// Rows end in 16 bytes more than they have, so that 8 of them meet other banks; columns of f32 in 32.
template <int WIDE> struct Stage {
    __align__(16) u32 a[TILE][DEEP / 2 + 4];
    __align__(16) float b[WIDE][DEEP + 8]; // or of T, in rows as those of a
};

struct Source {
    const char *a;
    i64 nb, depth, type; // type: of b
    int last, columns;   // row of the tile
    bool aligned;
};

// 16 bytes of a row of elements of T from number e on, under way or there; zeros beyond the depth.
template <class T> DEV void bring16(void *to, const char *row, i64 e, const Source &x, bool wanted)
{
    enum { V = 16 / sizeof(T) };
    if (x.aligned && e + V <= x.depth) {
        copy_async(to, row + e * (i64)sizeof(T), wanted);
        return;
    }
    T *y = (T *)to;
#pragma unroll
    for (int v = 0; v < V; ++v) {
        T zero;
        from_float(0.0f, &zero);
        y[v] = wanted && e + v < x.depth ? ((const T *)row)[e + v] : zero;
    }
}

template <class T, int WIDE>
DEV void bring(Stage<WIDE> &t, const Node<2> &n, const Columns &c, i64 first, const Source &x, int stage)
{
    enum { EACH = DEEP / 8, WIDER = DEEP / 4 }; // vectors of a row of T, of f32
#pragma unroll 1
    for (int i = threadIdx.x; i < TILE * EACH; i += 128) {
        const int r = i / EACH, k = i % EACH;
        bring16<T>(&t.a[r][4 * k], x.a + (r < x.last ? r : x.last) * x.nb, (i64)stage * DEEP + 8 * k, x, true);
    }
#pragma unroll 1
    for (int i = threadIdx.x; x.type == F32 && i < WIDE * WIDER; i += 128) {
        const int column = i / WIDER, k = i % WIDER;
        const bool wanted = column < x.columns;
        const char *row = column_at(n, c, slot_at(c, first + (wanted ? column : 0)));
        bring16<float>(&t.b[column][4 * k], row, (i64)stage * DEEP + 4 * k, x, wanted);
    }
#pragma unroll 1
    for (int i = threadIdx.x; x.type != F32 && i < WIDE * EACH; i += 128) {
        const int column = i / EACH, k = i % EACH;
        const bool wanted = column < x.columns;
        const char *row = column_at(n, c, slot_at(c, first + (wanted ? column : 0)));
        bring16<T>((u32 *)t.b + column * (DEEP / 2 + 4) + 4 * k, row, (i64)stage * DEEP + 8 * k, x, wanted);
    }
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

// The tile that begins at `row` and column `first`. aux[1]: whether all rows are at multiples of 16 bytes, aux[5]:
// stages of the ring
template <class T, int WIDE> DEV void tile(const Node<2> &n, const Columns &c, const Part &part, i64 row, i64 first)
{
    SHARED(Stage<WIDE>, ring);
    const Halves<WIDE> shape;
    const i64 m = n.dst.ne[0], depth = n.src[0].ne[0], left = c.count - first;
    const i64 end = part.end * 32 < depth ? part.end * 32 : depth;
    const Source x = {c.a + row * n.src[0].nb[1],
                      n.src[0].nb[1],
                      depth,
                      n.src[1].type,
                      (int)(m - row < TILE ? m - row : TILE) - 1,
                      (int)(left < WIDE ? left : WIDE),
                      n.aux[1] != 0};
    float sum[2][WIDE / 8][4];
    clear<WIDE>(sum);
    around((int)(part.begin * 32 / DEEP), (int)((end + DEEP - 1) / DEEP), (int)n.aux[5],
           [&](int slot, int stage) { bring<T>(ring[slot], n, c, first, x, stage); },
           [&](int slot, int) {
#pragma unroll
               for (int s = 0; s < DEEP / 32; ++s) {
                   multiply<T>(sum, ring[slot], shape, x.type, 2 * s + shape.half);
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
