// Products of 9 to 32 columns with a matrix of the quantized type TYPE, by a ring of raw stages (ring.cuh).
//
// A stage is 64 rows of 4 or 8 groups of 32, blocks as they are, and the same groups of the columns. A lane takes one
// group of its row apart; the codes go to tensor cores by way of shared memory that belongs to the warp, the scales by
// shuffles. Not here: fewer and more columns (mul_mat_q.cu).
// for each type: quantized
#include "quant.cuh"
#include "ring.cuh"

enum {
    PER_BLOCK = Block<TYPE>::n / 32,
    GROUPS = PER_BLOCK > 4 ? PER_BLOCK : 4, // of a stage
    BYTES = GROUPS / PER_BLOCK * Block<TYPE>::bytes,
    VECTORS = (BYTES + 30) / 16, // of 16 bytes that they touch, wherever they begin
    PITCH = VECTORS | 1          // rows meet other banks
};

template <int WIDE> struct Stage {
    __align__(16) uint4 a[TILE][PITCH];
    __align__(16) Act b[GROUPS][WIDE];
};

// Codes of 32 rows of a warp, 8 words and 4 more, so that 8 rows meet other banks.
typedef u32 Codes[32][12];

struct Source {
    const char *a; // the first row
    i64 nb;
    int last;     // row of the tile
    i64 bytes;    // of a row
    const Act *b; // the first column
    i64 groups;
    int columns;
};

template <int WIDE> DEV void bring(Stage<WIDE> &t, const Source &x, int stage)
{
    const i64 at = (i64)stage * BYTES;
#pragma unroll 1 // all addresses at once take more registers than there are
    for (int i = threadIdx.x; i < TILE * VECTORS; i += 128) {
        const int r = i / VECTORS, k = i % VECTORS;
        const char *row = x.a + (r < x.last ? r : x.last) * x.nb, *start = row + at, *end = row + x.bytes;
        const char *p = start - ((u64)start & 15) + 16 * k;
        if (end > start + BYTES) end = start + BYTES;
        if (p < end) copy_async(&t.a[r][k], p, true);
    }
    enum { EACH = 3 * GROUPS }; // vectors of a column
#pragma unroll 1
    for (int i = threadIdx.x; i < WIDE * EACH; i += 128) {
        const int column = i / EACH, k = i % EACH;
        const i64 g = (i64)stage * GROUPS + k / 3;
        const bool wanted = column < x.columns && g < x.groups;
        const Act *from = x.b + (wanted ? column * x.groups + g : 0);
        copy_async((uint4 *)&t.b[k / 3][column] + k % 3, (const uint4 *)from + k % 3, wanted);
    }
}

// 32 rows of a warp by 8 columns of a group.
DEV void add_products(float sum[2][4], const u32 a[2][4], const u32 b[2], const float d[2][2][2],
                      const float m[2][2][2], const Act *column)
{
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        int low[4] = {0, 0, 0, 0}, high[4] = {0, 0, 0, 0};
        if (Block<TYPE>::halves) {
            const u32 b_low[2] = {b[0], 0}, b_high[2] = {0, b[1]};
            mma_int8(low, a[i], b_low);
            mma_int8(high, a[i], b_high);
        } else {
            mma_int8(low, a[i], b);
        }
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int h = r / 2;
            const Act &y = column[r % 2];
            float dot = d[i][h][0] * (float)low[r];
            if (Block<TYPE>::halves) dot += d[i][h][1] * (float)high[r];
            sum[i][r] += dot * y.d;
            if (Block<TYPE>::mins) sum[i][r] += m[i][h][0] * y.s[0] + m[i][h][1] * y.s[1];
        }
    }
}

// Group g of a stage: `o` is that of this lane's row.
template <int WIDE>
DEV void multiply(float sum[2][WIDE / 8][4], const Stage<WIDE> &t, Codes codes, const Halves<WIDE> &shape, int g,
                  const Group &o)
{
    const int lane = threadIdx.x & 31;
    __syncwarp();
    *(int4 *)&codes[lane][0] = make_int4(o.q[0], o.q[1], o.q[2], o.q[3]);
    *(int4 *)&codes[lane][4] = make_int4(o.q[4], o.q[5], o.q[6], o.q[7]);
    __syncwarp();
    u32 a[2][4];
    float d[2][2][2], m[2][2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        load_matrices<false>(a[i], &codes[16 * i + (lane & 15)][4 * (lane >> 4)]);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = 16 * i + 8 * h + shape.group;
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                const bool same = k == 1 && !Block<TYPE>::halves;
                d[i][h][k] = same ? d[i][h][0] : __shfl_sync(0xffffffffu, o.d[k], row);
                m[i][h][k] = !Block<TYPE>::mins ? 0.0f : same ? m[i][h][0] : __shfl_sync(0xffffffffu, o.m[k], row);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < WIDE / 8; j += 2) {
        u32 b[4];
        load_matrices<false>(b, (const u32 *)&t.b[g][8 * j + (lane & 7) + lane / 16 * 8].q[lane / 8 % 2 * 4]);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            float both[2][4];
#pragma unroll
            for (int e = 0; e < 8; ++e) both[e / 4][e % 4] = sum[e / 4][j + k][e % 4];
            add_products(both, a, &b[2 * k], d, m, &t.b[g][8 * (j + k) + 2 * shape.member]);
#pragma unroll
            for (int e = 0; e < 8; ++e) sum[e / 4][j + k][e % 4] = both[e / 4][e % 4];
        }
    }
}

// The tile that begins at `row` and column `first`. aux[5]: stages of the ring
template <int WIDE> DEV void tile(const Node<2> &n, const Columns &c, const Part &part, i64 row, i64 first)
{
    SHARED(Codes, codes); // of each warp; behind them the ring
    Stage<WIDE> *ring = (Stage<WIDE> *)(codes + 4);
    const Halves<WIDE> shape;
    const i64 m = n.dst.ne[0], groups = n.src[0].ne[0] / 32, left = c.count - first;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Source x = {c.a + row * n.src[0].nb[1],
                      n.src[0].nb[1],
                      (int)(m - row < TILE ? m - row : TILE) - 1,
                      groups / PER_BLOCK * Block<TYPE>::bytes,
                      acts(n) + row_of(n, c, first) * groups,
                      groups,
                      (int)(left < WIDE ? left : WIDE)};
    const int mine = shape.to_row + lane;
    const char *my_row = x.a + (mine < x.last ? mine : x.last) * x.nb;
    float sum[2][WIDE / 8][4];
    clear<WIDE>(sum);
    around((int)(part.begin / GROUPS), (int)((part.end + GROUPS - 1) / GROUPS), (int)n.aux[5],
           [&](int slot, int stage) { bring(ring[slot], x, stage); },
           [&](int slot, int stage) {
               const Stage<WIDE> &t = ring[slot];
               const char *raw = (const char *)t.a[mine] + ((u64)(my_row + (i64)stage * BYTES) & 15);
               const i64 here = part.end - (i64)stage * GROUPS;
#pragma unroll 1
               for (int g = shape.half; g < GROUPS && g < here; g += 2) {
                   Group o;
                   unpack_staged<TYPE>(raw, g, o);
                   multiply<WIDE>(sum, t, codes[warp], shape, g, o);
               }
           });
    meet_and_write<WIDE>(n, c, part, shape, row, first, sum, (float *)ring);
}

// grid: tiles of rows, tiles of columns, batches and parts of the depth
template <int WIDE> DEV void tiles(const Node<2> &n)
{
    i64 batch, which;
    for (i64 z = blockIdx.z; z < n.dst.ne[2] * n.dst.ne[3] * n.aux[2]; z += gridDim.z) {
        divide(z, n.aux[2], &batch, &which);
        tile<WIDE>(n, columns_of(n, batch), part_of(n, which), (i64)blockIdx.x * TILE, (i64)blockIdx.y * WIDE);
    }
}

KERNEL_OF(tiles_16, 128, 3, Node<2>)
{
    tiles<16>(n);
}
KERNEL_OF(tiles_32, 128, 3, Node<2>)
{
    tiles<32>(n);
}
