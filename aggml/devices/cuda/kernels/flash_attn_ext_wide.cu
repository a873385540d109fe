// flash_attn_ext on tensor cores with rows of more than 128 elements, up to 576 of K and 512 of V (latent attention): a
// warp has too few registers for the sums of 16 such rows.
//
// So SHARE warps, two or four, have the same 16 rows. Each computes the scores of its part of 32 keys, reads those of
// the other warps from shared memory, and sums 128 columns of V. If V is the first columns of K, a tile of keys serves
// as the tile of values, too. A module is compiled for SHARE, BF16_TILES and BLOCKS, as flash_attn_ext_tiles.cu is.
// src: q, k, v, mask, sinks
#include "flash_tiles.cuh"

enum { BF16_HERE = BF16_TILES, COLUMNS = 128, SCORES = KEYS + 4 }; // SCORES: floats of a row of scores
enum { OWN = KEYS / 8 / SHARE };                                   // a warp computes the scores of 8 OWN keys

struct Queries {
    const u32 *queries; // of the 16 rows
    float *shared;      // their scores
    int stride;

    // Scores of the 16 rows with this warp's keys, which begin at `keys`. A load brings 16 keys of one step of depth,
    // or 8 keys of two steps.
    __device__ __forceinline__ void own_scores(float s[OWN][4], const u32 *keys) const
    {
        const int lane = threadIdx.x & 31;
        const u32 *row = queries + lane % 16 * stride + lane / 16 * 4;
        const u32 *key = keys + (OWN == 2 ? lane / 16 * 8 + lane % 8 : lane % 8) * stride +
                         (OWN == 2 ? lane / 8 % 2 : lane / 8) * 4;
#pragma unroll
        for (int j = 0; j < OWN; ++j) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
#pragma unroll 2
        for (int w = 0; w < stride - 4; w += 16 / OWN) {
            u32 a[4], b[4];
            load_matrices<false>(b, key + w);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (half == 0 || OWN == 1) load_matrices<false>(a, row + w + 8 * half);
                multiply<BF16_HERE != 0>(s[OWN == 2 ? half : 0], a, b + 2 * half);
            }
        }
    }

    // Scores of the 16 rows with a tile of keys. Every thread of the block must call this.
    __device__ __forceinline__ void scores(float s[4][4], const u32 *keys) const
    {
        const int group = (threadIdx.x & 31) >> 2, member = threadIdx.x & 3, part = (threadIdx.x >> 5) % SHARE;
        float mine[OWN][4];
        own_scores(mine, keys + 8 * OWN * part * stride);
        float *from = shared + group * SCORES + 2 * member, *to = from + 8 * OWN * part;
#pragma unroll
        for (int j = 0; j < OWN; ++j) {
#pragma unroll
            for (int r = 0; r < 4; ++r) to[r / 2 * 8 * SCORES + 8 * j + r % 2] = mine[j][r];
        }
        __syncthreads(); // the barriers of the next tile come after all reads below
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int r = 0; r < 4; ++r) s[j][r] = from[r / 2 * 8 * SCORES + 8 * j + r % 2];
        }
    }
};

// grid: tiles of rows (16 rows for SHARE warps), heads of K in all batches, splits of the keys. aux: see sources_of.
// Shared memory: queries, scores, tiles.
KERNEL(attend_wide, 256, Node<5>)
{
    SHARED(u32, memory);
    const int stride = (int)n.aux[0], tile_rows = (int)(blockDim.x / 2 / SHARE), warp = threadIdx.x >> 5;
    const int from = warp % SHARE * COLUMNS;
    const Task t = task_of(n, blockIdx.y);
    const i64 first = (i64)blockIdx.x * tile_rows, mine = first + warp / SHARE * 16 + ((threadIdx.x & 31) >> 2);
    bring_queries<BF16_HERE != 0>(memory, stride, tile_rows, n, t, first);
    Row rows[2];
    bool real[2];
    rows_of(rows, real, n, t, mine);
    __syncthreads();
    float *scores = (float *)(memory + tile_rows * stride);
    const Queries queries = {memory + warp / SHARE * 16 * stride, scores + warp / SHARE * 16 * SCORES, stride};
    const Sources x = sources_of(n, t, (u32 *)scores + tile_rows * SCORES, SHARE * COLUMNS);
    Sums<COLUMNS> sums;
    clear(sums);
    walk<BF16_HERE != 0>(queries, x, t, rows, real, sums, (i64)blockIdx.z * n.aux[1], from);
    write_rows(n, t, rows, real, sums, mine, from);
    if (gridDim.z > 1 && is_last_block(n)) combine_parts(n, (int)(blockDim.x / 2 / SHARE));
}
