// flash_attn_ext on tensor cores: softmax(scale Q K^T + mask) V in one pass over the keys (Milakov and Gimelshein,
// 2018; Dao et al., 2022), with ALiBi, softcap and sinks.
//
// A warp has 16 rows with all their columns. Keys may be split over blocks; then the last block of a tile of rows
// combines the parts. A module is compiled for WIDTH columns of V, for products of bf16 or not (BF16_TILES), and with
// or without quantized K and V (BLOCKS), which take long to compile. Wider rows: flash_attn_ext_wide.cu. src: q, k, v,
// mask, sinks
#include "flash_tiles.cuh"

// Up to so many columns of V a thread keeps its queries in registers. From sm_100 on there are too few for 128.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
enum { MOST_HELD = 64 };
#else
enum { MOST_HELD = 128 };
#endif
enum { BF16_HERE = BF16_TILES, HELD = WIDTH <= MOST_HELD ? WIDTH / 16 : 1 }; // HELD: steps of 16 elements

// One step of depth: words of all rows of a warp times the same words of 32 keys. key: where this lane loads from.
DEV void score_step(float s[4][4], const u32 a[4], const u32 *key, int stride)
{
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
        u32 b[4]; // of keys 8 j .. 8 j + 15
        load_matrices<false>(b, key + 8 * j * stride);
        multiply<BF16_HERE != 0>(s[j], a, b);
        multiply<BF16_HERE != 0>(s[j + 1], a, b + 2);
    }
}

// The queries of a warp: in registers if they fit, else read from shared memory for each tile.
struct Queries {
    const u32 *mine; // words of this thread's first row
    int stride;
    bool held;
    u32 own[HELD][4];

    __device__ __forceinline__ void words(u32 a[4], int w) const
    {
        a[0] = mine[w], a[1] = mine[w + 8 * stride], a[2] = mine[w + 4], a[3] = mine[w + 8 * stride + 4];
    }

    __device__ __forceinline__ Queries(const u32 *queries, int row_words)
    {
        mine = queries + ((threadIdx.x >> 5) * 16 + ((threadIdx.x & 31) >> 2)) * row_words + (threadIdx.x & 3);
        stride = row_words;
        held = WIDTH <= MOST_HELD && stride - 4 <= WIDTH / 2;
#pragma unroll
        for (int w = 0; w < HELD; ++w) {
            own[w][0] = own[w][1] = own[w][2] = own[w][3] = 0;
            if (held && 8 * w < stride - 4) words(own[w], 8 * w);
        }
    }

    // Scores of the warp's 16 rows with a tile of keys.
    __device__ __forceinline__ void scores(float s[4][4], const u32 *keys) const
    {
        const int lane = threadIdx.x & 31;
        const u32 *key = keys + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 4;
#pragma unroll
        for (int j = 0; j < 4; ++j) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
        if (held) {
#pragma unroll
            for (int w = 0; w < HELD; ++w) {
                if (8 * w >= stride - 4) break;
                score_step(s, own[w], key + 8 * w, stride);
            }
        }
        for (int w = held ? stride - 4 : 0; w < stride - 4; w += 8) {
            u32 a[4];
            words(a, w);
            score_step(s, a, key + w, stride);
        }
    }
};

// grid: tiles of rows, heads of K in all batches, splits of the keys. aux: see sources_of. Shared memory: queries,
// tiles.
KERNEL(attend_tiles, 128, Node<5>)
{
    SHARED(u32, memory);
    const int stride = (int)n.aux[0], tile_rows = (int)(blockDim.x / 2);
    const Task t = task_of(n, blockIdx.y);
    const i64 first = (i64)blockIdx.x * tile_rows, mine = first + (threadIdx.x >> 5) * 16 + ((threadIdx.x & 31) >> 2);
    bring_queries<BF16_HERE != 0>(memory, stride, tile_rows, n, t, first);
    Row rows[2];
    bool real[2];
    rows_of(rows, real, n, t, mine);
    __syncthreads();
    const Queries queries(memory, stride);
    const Sources x = sources_of(n, t, memory + tile_rows * stride, WIDTH);
    Sums<WIDTH> sums;
    clear(sums);
    walk<BF16_HERE != 0>(queries, x, t, rows, real, sums, (i64)blockIdx.z * n.aux[1], 0);
    write_rows(n, t, rows, real, sums, mine, 0);
    if (gridDim.z > 1 && is_last_block(n)) combine_parts(n, (int)(blockDim.x / 2));
}
