// Products of 9 to 32 columns with a matrix of the quantized type TYPE, by a ring of raw stages (ring.cuh).
//
// A stage is 64 rows of 4 or 8 groups of 32 elements, as raw blocks, and the same groups of the columns. A lane unpacks
// one group of its row. The codes reach the tensor cores through shared memory of the warp, the scales by shuffles. Not
// here: fewer and more columns (mul_mat_q.cu).
// for each type: quantized
#include "quant.cuh"
#include "ring.cuh"

enum {
    PER_BLOCK = Block<TYPE>::n / 32,
    GROUPS = PER_BLOCK > 4 ? PER_BLOCK : 4, // of a stage
    BYTES = GROUPS / PER_BLOCK * Block<TYPE>::bytes,
    VECTORS = (BYTES + 30) / 16, // of 16 bytes that these bytes touch at most
    PITCH = VECTORS | 1          // odd, so that rows fall into different banks
};

// Vectors of a column in a stage. Columns are padded by one vector, also because of the banks.
enum { ACTS = 3 * GROUPS };

template <int WIDE> struct Stage {
    __align__(16) uint4 a[TILE][PITCH];
    __align__(16) uint4 b[WIDE][ACTS + 1];
};

// Codes of two groups of the 32 rows of a warp: 8 words a group, and 4 words of padding.
typedef u32 Codes[32][20];

// What a thread loads of each stage: every fourth vector of two rows, every eighth of one or two columns. Stages are
// loaded in order.
template <int WIDE> struct Source {
    enum { COLUMNS = WIDE / 16 };
    const char *a[2], *b[COLUMNS];
    int bytes, acts[COLUMNS]; // bytes still to load of a row, of each column
    Place to_a, to_b;         // destinations in the first stage of the ring
};

template <int WIDE>
DEV Source<WIDE> source(const Node<2> &n, const Columns &c, Stage<WIDE> *ring, i64 begin, i64 row, i64 first)
{
    const i64 groups = n.src[0].ne[0] / 32, last = n.dst.ne[0] - 1;
    const int to_row = threadIdx.x / 4, to_column = threadIdx.x / 8;
    Source<WIDE> x;
    x.bytes = (int)((groups - begin * GROUPS) / PER_BLOCK * Block<TYPE>::bytes);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const i64 mine = row + to_row + 32 * r;
        x.a[r] = c.a + (mine < last ? mine : last) * n.src[0].nb[1] + begin * BYTES;
    }
#pragma unroll
    for (int i = 0; i < Source<WIDE>::COLUMNS; ++i) {
        const i64 column = first + to_column + 16 * i;
        const bool real = column < c.count;
        const Act *acts_of = acts(n) + row_of(n, c, real ? column : first) * groups + begin * GROUPS;
        x.b[i] = (const char *)acts_of + threadIdx.x % 8 * 16;
        x.acts[i] = real ? (int)(groups - begin * GROUPS) * 48 : 0;
    }
    x.to_a = place_of(&ring->a[to_row][threadIdx.x % 4]);
    x.to_b = place_of(&ring->b[to_column][threadIdx.x % 8]);
    return x;
}

template <int WIDE> DEV void bring(Source<WIDE> &x, int slot)
{
    const int ahead = slot * (int)sizeof(Stage<WIDE>);
    const int there = x.bytes < BYTES ? x.bytes : BYTES, k = threadIdx.x % 4 * 16;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int before = (int)((u64)x.a[r] & 15);
        const char *from = x.a[r] - before + k;
        const Place to = x.to_a + ahead + 32 * r * (int)sizeof(Stage<WIDE>::a[0]);
#pragma unroll
        for (int e = 0; e < 16 * VECTORS; e += 64) {
            if (k + e < there + before) copy_async_to(to + e, from + e, true);
        }
        x.a[r] += BYTES;
    }
    x.bytes -= BYTES;
    const int mine = threadIdx.x % 8 * 16;
#pragma unroll
    for (int i = 0; i < Source<WIDE>::COLUMNS; ++i) {
        const Place to = x.to_b + ahead + 16 * i * (int)sizeof(Stage<WIDE>::b[0]);
#pragma unroll
        for (int e = 0; e < 16 * ACTS; e += 128) {
            if (mine + e < 16 * ACTS) copy_async_to(to + e, x.b[i] + e, mine + e < x.acts[i]);
        }
        x.b[i] += 16 * ACTS;
        x.acts[i] -= 16 * ACTS;
    }
}

// Adds the products of one group: 32 rows of a warp by 8 columns.
DEV void add_products(float sum[2][4], const u32 a[2][4], const u32 b[2], const float d[2][2][2],
                      const float m[2][2][2], const Act *const column[2])
{
    float both[2]; // sums of both halves of the columns, if one minimum serves both
#pragma unroll
    for (int z = 0; z < 2; ++z) both[z] = Block<TYPE>::mins ? column[z]->s[0] + column[z]->s[1] : 0.0f;
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
            const Act &y = *column[r % 2];
            float dot = d[i][h][0] * (float)low[r];
            if (Block<TYPE>::halves) dot += d[i][h][1] * (float)high[r];
            sum[i][r] += dot * y.d;
            if (Block<TYPE>::mins && Block<TYPE>::halves) sum[i][r] += m[i][h][0] * y.s[0] + m[i][h][1] * y.s[1];
            if (Block<TYPE>::mins && !Block<TYPE>::halves) sum[i][r] += m[i][h][0] * both[r % 2];
        }
    }
}

// Scales and minima of two groups of 32 rows. Lane l has rows l % 16 and 16 + l % 16 of group l / 16, so that two lanes
// access a bank of shared memory at once, and not four.
struct Pair {
    float d[2][2], m[2][2];
};

DEV void take_apart(Pair &o, Codes codes, const char *const raw[2], int g)
{
    const int lane = threadIdx.x & 31;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        Group x;
        unpack_staged<TYPE>(raw[i], g, x);
        u32 *to = &codes[16 * i + lane % 16][lane / 16 * 8];
        *(int4 *)to = make_int4(x.q[0], x.q[1], x.q[2], x.q[3]);
        *(int4 *)(to + 4) = make_int4(x.q[4], x.q[5], x.q[6], x.q[7]);
#pragma unroll
        for (int h = 0; h < 2; ++h) o.d[i][h] = x.d[h], o.m[i][h] = x.m[h];
    }
    __syncwarp();
}

// Multiplies group number `which` of the two, which is group g of the stage.
template <int WIDE>
DEV void multiply(float sum[2][WIDE / 8][4], const Stage<WIDE> &t, const Codes codes, const Halves<WIDE> &shape,
                  int which, int g, const Pair &o)
{
    const int lane = threadIdx.x & 31;
    u32 a[2][4];
    float d[2][2][2], m[2][2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        load_matrices<false>(a[i], &codes[16 * i + (lane & 15)][8 * which + 4 * (lane >> 4)]);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int from = 16 * which + 8 * h + shape.group;
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                const bool same = k == 1 && !Block<TYPE>::halves;
                d[i][h][k] = same ? d[i][h][0] : __shfl_sync(0xffffffffu, o.d[i][k], from);
                m[i][h][k] = !Block<TYPE>::mins ? 0.0f : same ? m[i][h][0] : __shfl_sync(0xffffffffu, o.m[i][k], from);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < WIDE / 8; j += 2) {
        u32 b[4];
        load_matrices<false>(b, (const u32 *)&t.b[8 * j + (lane & 7) + lane / 16 * 8][3 * g + lane / 8 % 2]);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            float both[2][4];
#pragma unroll
            for (int e = 0; e < 8; ++e) both[e / 4][e % 4] = sum[e / 4][j + k][e % 4];
            const int column = 8 * (j + k) + 2 * shape.member;
            const Act *const y[2] = {(const Act *)&t.b[column][3 * g], (const Act *)&t.b[column + 1][3 * g]};
            add_products(both, a, &b[2 * k], d, m, y);
#pragma unroll
            for (int e = 0; e < 8; ++e) sum[e / 4][j + k][e % 4] = both[e / 4][e % 4];
        }
    }
}

// The tile that begins at `row` and column `first`. aux[5]: stages of the ring
template <int WIDE> DEV void tile(const Node<2> &n, const Columns &c, const Part &part, i64 row, i64 first)
{
    SHARED(Codes, codes); // of each warp; the ring follows
    Stage<WIDE> *ring = (Stage<WIDE> *)(codes + 4);
    const Halves<WIDE> shape;
    // The two groups of a pair are APART groups from each other. In a stage of four groups that is 2, because
    // neighbours would access the same banks.
    enum { APART = GROUPS == 4 ? 2 : 1, NEXT = GROUPS == 4 ? 1 : 2 };
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, mine = shape.to_row + lane % 16;
    const i64 last = n.dst.ne[0] - 1, begin = part.begin / GROUPS;
    Source<WIDE> x = source<WIDE>(n, c, ring, begin, row, first);
    const char *my_row[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const i64 to = row + mine + 16 * i;
        my_row[i] = c.a + (to < last ? to : last) * n.src[0].nb[1];
    }
    float sum[2][WIDE / 8][4];
    clear<WIDE>(sum);
    around((int)begin, (int)((part.end + GROUPS - 1) / GROUPS), (int)n.aux[5], [&](int slot, int) { bring(x, slot); },
           [&](int slot, int stage) {
               const Stage<WIDE> &t = ring[slot];
               const char *raw[2];
#pragma unroll
               for (int i = 0; i < 2; ++i) {
                   raw[i] = (const char *)t.a[mine + 16 * i] + ((u64)(my_row[i] + (i64)stage * BYTES) & 15);
               }
               const i64 here = part.end - (i64)stage * GROUPS;
#pragma unroll 1
               for (int g = NEXT * shape.half; g < GROUPS && g < here; g += 4) {
                   Pair o;
                   take_apart(o, codes[warp], raw, g + APART * (lane / 16));
#pragma unroll(WIDE == 16 ? 2 : 1)
                   for (int which = 0; which < 2; ++which) {
                       if (g + APART * which >= here) break;
                       multiply<WIDE>(sum, t, codes[warp], shape, which, g + APART * which, o);
                   }
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
// Three blocks leave q2_K two registers short.
enum { FIT_32 = Block<TYPE>::mins && Block<TYPE>::halves ? 2 : 3 };

KERNEL_OF(tiles_32, 128, FIT_32, Node<2>)
{
    tiles<32>(n);
}
