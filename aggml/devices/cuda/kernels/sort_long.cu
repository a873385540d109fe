// argsort and top_k of rows of more than 4096 elements, by many blocks for each row: 63 for a vocabulary of 128K.
//
// top_k is a radix selection. Three launches count the digits of 11, 11 and 10 bits of the keys, each only among keys
// whose higher digits are those of the k-th key; then the k-th key is known. One more launch collects the keys that are
// less. The last one adds the first keys equal to the k-th, as many as are missing, and sorts these k keys. argsort is
// a stable radix sort with four digits of 8 bits; each pass counts, adds up and moves.
// grid: parts of a row, rows from aux[0] on. Scratch: for each of these rows the words listed below.
#include "scan.cuh"
#include "sort.cuh"

// EACH: elements of a thread. PART: elements of a block. MOST: the largest k of a selection
enum { THREADS = 256, EACH = 8, PART = THREADS * EACH, BINS = 2048, DIGITS = 256, MOST = 4096 };

struct Long {
    Index at;
    const char *x;
    i64 width, step, first;
};

DEV Long row_of(const Node<1> &n)
{
    const Tensor &a = n.src[0];
    Long r;
    r.at = row_index(a, n.aux[0] + blockIdx.y);
    r.x = a.data + at(a, r.at);
    r.width = a.ne[0];
    r.step = a.nb[0];
    r.first = (i64)blockIdx.x * PART;
    return r;
}

// --- top_k: u32 bins[3][BINS], number of lesser keys, one unused word, number of equal keys in each part; u64 keys[k]

enum { LESS = 3 * BINS, EQUAL = 3 * BINS + 2 };

// aux: first row, words of scratch for a row, word at which keys begin, k, pass
DEV u32 *words_of(const Node<1> &n)
{
    return (u32 *)n.scratch + blockIdx.y * n.aux[1];
}

// The first `passes` digits of the k-th key, and its rank, from 1 on, among the keys that begin with them.
DEV void resolve(const u32 *words, int passes, u32 k, u32 *prefix, u32 *left)
{
    __shared__ u32 found[2];
    *prefix = 0;
    *left = k;
    for (int p = 0; p < passes; ++p) {
        const uint4 *bins = (const uint4 *)(words + p * BINS) + 2 * threadIdx.x;
        const uint4 low = bins[0], high = bins[1];
        const u32 mine[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        u32 sum = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += mine[i];
        u32 before = sum_before(sum);
        if (before < *left && *left <= before + sum) {
            bool past = false;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                if (!past && *left <= before + mine[i]) {
                    past = true;
                    found[0] = 8 * threadIdx.x + i;
                    found[1] = *left - before;
                }
                if (!past) before += mine[i];
            }
        }
        __syncthreads();
        *prefix = *prefix << (p == 2 ? 10 : 11) | found[0];
        *left = found[1];
        __syncthreads();
    }
}

KERNEL(select_clear, 256, Node<1>)
{
    const i64 w = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (w < n.aux[2]) words_of(n)[w] = 0;
}

KERNEL(select_digits, 256, Node<1>)
{
    __shared__ u32 bins[BINS];
    const Long r = row_of(n);
    u32 *words = words_of(n), prefix, left;
    const int pass = (int)n.aux[4], shift = pass == 0 ? 21 : pass == 1 ? 10 : 0, bits = pass == 2 ? 10 : 11;
    for (int b = threadIdx.x; b < BINS; b += THREADS) bins[b] = 0;
    resolve(words, pass, (u32)n.aux[3], &prefix, &left);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const i64 e = r.first + j * THREADS + threadIdx.x;
        if (e >= r.width) continue;
        const u32 key = value_key(r.x + e * r.step, true);
        if (pass == 0 || key >> (shift + bits) == prefix) atomicAdd(&bins[key >> shift & ((1u << bits) - 1)], 1u);
    }
    __syncthreads();
    for (int b = threadIdx.x; b < BINS; b += THREADS) {
        if (bins[b] != 0) atomicAdd(&words[pass * BINS + b], bins[b]);
    }
}

KERNEL(select_less, 256, Node<1>)
{
    const Long r = row_of(n);
    u32 *words = words_of(n), wanted, left, equal = 0;
    u64 *keys = (u64 *)(words + n.aux[2]);
    resolve(words, 3, (u32)n.aux[3], &wanted, &left);
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const i64 e = r.first + j * THREADS + threadIdx.x;
        if (e >= r.width) continue;
        const u32 key = value_key(r.x + e * r.step, true);
        if (key < wanted) keys[atomicAdd(&words[LESS], 1u)] = (u64)key << 32 | (u64)e;
        equal += key == wanted;
    }
    equal = block_sum(equal);
    if (threadIdx.x == 0) words[EQUAL + blockIdx.x] = equal;
}

// A block for each row; aux[5]: number of parts, aux[6]: k, rounded up to a power of two.
KERNEL(select_sort, 256, Node<1>)
{
    __shared__ u64 keys[MOST];
    const Long r = row_of(n);
    u32 *words = words_of(n), wanted, left;
    const i64 k = n.aux[3];
    resolve(words, 3, (u32)k, &wanted, &left);
    u32 taken = (u32)k - left; // number of lesser keys
    const u64 *given = (const u64 *)(words + n.aux[2]);
    for (i64 e = threadIdx.x; e < n.aux[6]; e += THREADS) keys[e] = e < taken ? given[e] : ~(u64)0;
    __syncthreads();
    for (i64 part = 0; part < n.aux[5] && taken < k; ++part) {
        if (words[EQUAL + part] == 0) continue;
        for (int j = 0; j < EACH && taken < k; ++j) {
            const i64 e = part * PART + j * THREADS + threadIdx.x;
            const u32 here = e < r.width && value_key(r.x + e * r.step, true) == wanted;
            const u32 place = taken + sum_before(here);
            if (here && place < k) keys[place] = (u64)wanted << 32 | (u64)e;
            taken += block_sum(here);
        }
    }
    bitonic(keys, n.aux[6]);
    for (i64 e = threadIdx.x; e < k; e += THREADS) {
        *(int *)(n.dst.data + at(n.dst, r.at) + e * n.dst.nb[0]) = (int)(keys[e] & 0xffffffffu);
    }
}

// --- top_k of 1: u64 least[parts]

KERNEL(first_of_parts, 256, Node<1>)
{
    const Long r = row_of(n);
    u64 mine = ~(u64)0;
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const i64 e = r.first + j * THREADS + threadIdx.x;
        const u64 key = e < r.width ? key_of(r.x + e * r.step, e, true) : ~(u64)0;
        if (key < mine) mine = key;
    }
    const u64 least = block_min(mine);
    if (threadIdx.x == 0) ((u64 *)words_of(n))[blockIdx.x] = least;
}

KERNEL(first_of_all, 256, Node<1>)
{
    const Long r = row_of(n);
    const u64 *parts = (const u64 *)words_of(n);
    u64 mine = ~(u64)0;
    for (i64 p = threadIdx.x; p < n.aux[5]; p += THREADS) {
        if (parts[p] < mine) mine = parts[p];
    }
    const u64 least = block_min(mine);
    if (threadIdx.x == 0) *(int *)(n.dst.data + at(n.dst, r.at)) = (int)(least & 0xffffffffu);
}

// --- argsort: u32 counts[DIGITS][parts], then u64 keys[2][width]
// aux[3]: whether to sort in descending order, aux[4]: pass, aux[5]: number of parts

struct Radix {
    u32 *counts;
    u64 *from, *to;
    int pass;
};

DEV Radix radix_of(const Node<1> &n, i64 width)
{
    Radix s;
    s.counts = words_of(n);
    s.pass = (int)n.aux[4];
    u64 *keys = (u64 *)(s.counts + n.aux[2]);
    s.from = s.pass % 2 == 0 ? keys : keys + width;
    s.to = s.pass % 2 == 0 ? keys + width : keys;
    return s;
}

// The first pass reads the row itself.
DEV u64 radix_key(const Node<1> &n, const Long &r, const Radix &s, i64 e)
{
    return s.pass == 0 ? key_of(r.x + e * r.step, e, n.aux[3] != 0) : s.from[e];
}

DEV u32 digit_of(const Radix &s, u64 key)
{
    return (u32)(key >> (32 + 8 * s.pass)) & (DIGITS - 1);
}

KERNEL(radix_count, 256, Node<1>)
{
    __shared__ u32 bins[DIGITS];
    const Long r = row_of(n);
    const Radix s = radix_of(n, r.width);
    bins[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const i64 e = r.first + j * THREADS + threadIdx.x;
        if (e < r.width) atomicAdd(&bins[digit_of(s, radix_key(n, r, s, e))], 1u);
    }
    __syncthreads();
    s.counts[threadIdx.x * n.aux[5] + blockIdx.x] = bins[threadIdx.x];
}

// A block for each row: replaces each count by the sum of the counts before it.
KERNEL(radix_add, 256, Node<1>)
{
    u32 *counts = words_of(n);
    const i64 parts = n.aux[5]; // each thread has one digit
    u32 sum = 0;
    for (i64 p = 0; p < parts; ++p) sum += counts[threadIdx.x * parts + p];
    u32 before = sum_before(sum);
    for (i64 p = 0; p < parts; ++p) {
        const u32 here = counts[threadIdx.x * parts + p];
        counts[threadIdx.x * parts + p] = before;
        before += here;
    }
}

// A warp has 256 consecutive keys, 32 at a time. Lanes with the same digit find their order by votes.
KERNEL(radix_move, 256, Node<1>)
{
    __shared__ u32 seen[THREADS / 32][DIGITS];
    const Long r = row_of(n);
    const Radix s = radix_of(n, r.width);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u64 keys[EACH];
    u32 place[EACH];
    for (int d = lane; d < DIGITS; d += 32) seen[warp][d] = 0;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        const i64 e = r.first + warp * (PART / (THREADS / 32)) + j * 32 + lane;
        const bool real = e < r.width;
        keys[j] = real ? radix_key(n, r, s, e) : ~(u64)0;
        const u32 digit = digit_of(s, keys[j]);
        u32 alike = __ballot_sync(0xffffffffu, real);
#pragma unroll
        for (int bit = 0; bit < 8; ++bit) {
            const u32 votes = __ballot_sync(0xffffffffu, digit >> bit & 1);
            alike &= digit >> bit & 1 ? votes : ~votes;
        }
        const u32 lower = alike & ((1u << lane) - 1);
        place[j] = seen[warp][digit] + __popc(lower);
        __syncwarp();
        if (real && lower == 0) seen[warp][digit] += __popc(alike);
        __syncwarp();
    }
    __syncthreads();
    u32 base = s.counts[threadIdx.x * n.aux[5] + blockIdx.x]; // each thread has one digit
#pragma unroll
    for (int w = 0; w < THREADS / 32; ++w) {
        const u32 here = seen[w][threadIdx.x];
        seen[w][threadIdx.x] = base;
        base += here;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
        if (r.first + warp * (PART / (THREADS / 32)) + j * 32 + lane >= r.width) continue;
        const i64 to = seen[warp][digit_of(s, keys[j])] + place[j];
        if (s.pass < 3) {
            s.to[to] = keys[j];
        } else if (to < n.dst.ne[0]) {
            *(int *)(n.dst.data + at(n.dst, r.at) + to * n.dst.nb[0]) = (int)(keys[j] & 0xffffffffu);
        }
    }
}
