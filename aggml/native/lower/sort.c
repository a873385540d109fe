/* argsort and top_k: the order of the elements of each row of f32.
 *
 * Each element becomes a 64-bit key: first its value as an unsigned number that ascends in the wanted order, then
 * its index. So keys are distinct, equal values keep the order of their indices, NaN comes last in either order, and
 * -0 equals 0. If only the first element is wanted, it is found without keys. */
#include <math.h>

#include "kernels/sort.h"
#include "table/kernel_types.h"
#include "units.h"

enum { DESCENDING, KERNEL }; /* slots of node->aux */
enum { INSERTION = 48 };     /* up to this number, keys are sorted by insertion; radix passes take 2 us at least */

static inline uint64_t key_of(const char *p, int64_t index, bool descending)
{
    uint32_t bits;
    float value;
    memcpy(&bits, p, sizeof bits);
    memcpy(&value, p, sizeof value);
    if (value != value) {
        bits = UINT32_MAX;
    } else {
        if (bits == 0x80000000u) bits = 0;
        bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
        if (descending) bits = ~bits;
    }
    return (uint64_t)bits << 32 | (uint64_t)index;
}

static void insertion_sort(uint64_t *keys, int64_t n)
{
    for (int64_t i = 1; i < n; ++i) {
        const uint64_t key = keys[i];
        int64_t k = i;
        for (; k > 0 && keys[k - 1] > key; --k) keys[k] = keys[k - 1];
        keys[k] = key;
    }
}

/* Sorts keys that are in the order of their indices: up to four stable passes over the bytes of the value. A pass is
 * left out if all keys have the same byte. Returns where the sorted keys are, `keys` or `other`. */
static const uint64_t *sort_keys(uint64_t *keys, uint64_t *other, int64_t n)
{
    if (n <= INSERTION) {
        insertion_sort(keys, n);
        return keys;
    }
    for (int shift = 32; shift < 64; shift += 8) {
        int64_t start[256] = {0};
        for (int64_t i = 0; i < n; ++i) ++start[keys[i] >> shift & 255];
        if (start[keys[0] >> shift & 255] == n) continue;
        for (int64_t byte = 0, sum = 0; byte < 256; ++byte) {
            const int64_t count = start[byte];
            start[byte] = sum;
            sum += count;
        }
        for (int64_t i = 0; i < n; ++i) other[start[keys[i] >> shift & 255]++] = keys[i];
        uint64_t *swap = keys;
        keys = other;
        other = swap;
    }
    return keys;
}

static void sift_down(uint64_t *heap, int64_t n, int64_t at)
{
    const uint64_t key = heap[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] > heap[child]) ++child;
        if (heap[child] <= key) break;
        heap[at] = heap[child];
    }
    heap[at] = key;
}

enum { LANES = 16, PART = 32, BLOCK = 512 };

/* The largest element of a block; NaN is skipped. */
static float block_max(const char *x, int64_t n)
{
    float most[LANES], values[LANES];
    for (int j = 0; j < LANES; ++j) most[j] = -INFINITY;
    for (; n >= LANES; n -= LANES, x += sizeof values) {
        memcpy(values, x, sizeof values);
        for (int j = 0; j < LANES; ++j) most[j] = values[j] > most[j] ? values[j] : most[j];
    }
    memcpy(values, x, (size_t)n * sizeof *values);
    for (int64_t j = 0; j < n; ++j) most[j] = values[j] > most[j] ? values[j] : most[j];
    for (int j = 1; j < LANES; ++j) most[0] = most[j] > most[0] ? most[j] : most[0];
    return most[0];
}

static inline float value_at(const char *row, int64_t stride, int64_t i)
{
    float value;
    memcpy(&value, row + i * stride, sizeof value);
    return value;
}

/* The index of the smallest key of a contiguous row. */
static int32_t first_of_largest(const char *row, int64_t n)
{
    float most = -INFINITY;
    int64_t in = 0;
    for (int64_t i = 0; i < n; i += BLOCK) {
        const float here = block_max(row + i * (int64_t)sizeof(float), n - i < BLOCK ? n - i : BLOCK);
        if (here > most) {
            most = here;
            in = i;
        }
    }
    for (int64_t i = in; i < n; ++i)
        if (value_at(row, sizeof(float), i) >= most) return (int32_t)i;
    return 0; /* all elements are NaN */
}

/* Whether PART elements of a contiguous row all come after the element of a given key, compared in lanes. In a long
 * row nearly all elements are skipped in this way, at a tenth of the time. */
static bool all_behind(const char *row, int64_t i, uint64_t key)
{
    const float least = value_at(row, sizeof(float), (int64_t)(key & UINT32_MAX));
    float values[PART];
    memcpy(values, row + i * (int64_t)sizeof(float), sizeof values);
    int before = least != least; /* NaN comes after all numbers */
    for (int j = 0; j < PART; ++j) before |= values[j] > least;
    return !before;
}

/* The k smallest keys in order: a heap with the largest of them at the root, which is then emptied from the end. A
 * value that is not above that of the root comes after it: keys of equal values are in the order of their indices. Only
 * other values, and NaN, become keys. */
static void smallest_keys(uint64_t *heap, int64_t k, const char *row, int64_t stride, int64_t n)
{
    for (int64_t i = 0; i < k; ++i) heap[i] = key_of(row + i * stride, i, true);
    for (int64_t i = k / 2 - 1; i >= 0; --i) sift_down(heap, k, i);
    float least = value_at(row, stride, (int64_t)(heap[0] & UINT32_MAX));
    for (int64_t i = k, end; i < n; i = end) {
        end = n - i < PART ? n : i + PART;
        if (stride == sizeof(float) && end - i == PART && all_behind(row, i, heap[0])) continue;
        for (; i < end; ++i) {
            if (value_at(row, stride, i) <= least) continue;
            const uint64_t key = key_of(row + i * stride, i, true);
            if (key > heap[0]) continue;
            heap[0] = key;
            sift_down(heap, k, 0);
            least = value_at(row, stride, (int64_t)(heap[0] & UINT32_MAX));
        }
    }
    for (int64_t left = k - 1; left > 0; --left) {
        const uint64_t largest = heap[0];
        heap[0] = heap[left];
        sift_down(heap, left, 0);
        heap[left] = largest;
    }
}

/* The k smallest keys of a contiguous row, for small k: the keys found so far are kept sorted and a new one is
 * inserted, which costs less than a heap. Values that all come after them are skipped by comparing in lanes. */
static void k_smallest_keys(uint64_t *keys, int64_t k, const char *row, int64_t n)
{
    int64_t found = 0;
    for (int64_t i = 0, end; i < n; i = end) {
        end = n - i < PART ? n : i + PART;
        if (found == k && end - i == PART && all_behind(row, i, keys[k - 1])) continue;
        int32_t orders[PART] = {0};
        memcpy(orders, row + i * (int64_t)sizeof(float), (size_t)(end - i) * sizeof(float));
        for (int j = 0; j < PART; ++j) orders[j] = agk_sort_descending(orders[j]);
        for (int64_t j = 0; j < end - i; ++j) {
            const uint64_t key = (uint64_t)((uint32_t)orders[j] ^ 0x80000000u) << 32 | (uint64_t)(i + j);
            if (found == k && key > keys[k - 1]) continue;
            int64_t at = found < k ? found++ : k - 1;
            for (; at > 0 && keys[at - 1] > key; --at) keys[at] = keys[at - 1];
            keys[at] = key;
        }
    }
}

/* Of a long row more than a few keys go into a heap. One thread of a Zen 4, us by insertion and by the heap: 8 rows of
 * 32,000 k = 8 52 and 51, k = 24 80 and 72, k = 32 95 and 81; 64 rows of 4,096 k = 24 390 and 730. */
static bool by_insertion(int64_t n, int64_t k)
{
    return k <= INSERTION && (k <= 16 || n < 16384);
}

static bool by_heap(int64_t n, int64_t k)
{
    return k < n / 8;
}

static agk_status run(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *dst = &node->dst, *a = &node->src[0];
    const int64_t n = a->ne[0], k = dst->ne[0];
    const bool descending = node->aux.i[DESCENDING] != 0;
    agk_sort_top_k_fn *top_k = (agk_sort_top_k_fn *)node->aux.fn[KERNEL];
    int32_t places[AGK_SORT_MOST];
    const agk_range rows = agk_units_of(node, chunk);
    for (int64_t row = rows.first; row < rows.last; ++row) {
        const char *x = (const char *)agk_data(task, a) + agk_row_at(a, row);
        char *y = (char *)agk_data(task, dst) + agk_row_at(dst, row);
        if (k == 1 && a->nb[0] == sizeof(float) && node->op == AGK_OP_top_k) {
            const int32_t index = first_of_largest(x, n);
            memcpy(y, &index, sizeof index);
            continue;
        }
        uint64_t *keys = task->scratch;
        const uint64_t *sorted = keys;
        const bool dense = a->nb[0] == sizeof(float);
        if (k <= AGK_SORT_MOST && n >= AGK_SORT_LEAST && dense && top_k(n, k, x, places)) {
            for (int64_t i = 0; i < k; ++i) memcpy(y + i * dst->nb[0], &places[i], sizeof *places);
            continue;
        }
        if (by_heap(n, k) && by_insertion(n, k) && dense) {
            k_smallest_keys(keys, k, x, n);
        } else if (by_heap(n, k)) {
            smallest_keys(keys, k, x, a->nb[0], n);
        } else {
            for (int64_t i = 0; i < n; ++i) keys[i] = key_of(x + i * a->nb[0], i, descending);
            sorted = sort_keys(keys, keys + n, n);
        }
        for (int64_t i = 0; i < k; ++i) {
            const int32_t index = (int32_t)(sorted[i] & UINT32_MAX);
            memcpy(y + i * dst->nb[0], &index, sizeof index);
        }
    }
    return AGK_OK;
}

agk_status agk_lower_sort(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *a = &node->src[0];
    const bool all = node->op == AGK_OP_argsort;
    if (a->type != AGK_F32 || dst->type != AGK_I32) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "a is %s, not f32; the result is %s", agk_type_name(a->type),
                          agk_type_name(dst->type));
    }
    if (dst->ne[1] != a->ne[1] || dst->ne[2] != a->ne[2] || dst->ne[3] != a->ne[3] || a->ne[0] > INT32_MAX ||
        (all ? dst->ne[0] != a->ne[0] : dst->ne[0] > a->ne[0])) {
        return agk_refuse(
            lowering, AGK_INVALID, "a has %lld rows of %lld elements; a result of %lld rows of %lld does not fit",
            (long long)agk_nrows(a), (long long)a->ne[0], (long long)agk_nrows(dst), (long long)dst->ne[0]);
    }
    if (agk_nelements(dst) == 0) return AGK_OK;
    const bool heap = by_heap(a->ne[0], dst->ne[0]);
    const int64_t rows = agk_nrows(a);
    lowering->scratch_size = (size_t)(heap ? dst->ne[0] : 2 * a->ne[0]) * sizeof(uint64_t);
    node->aux.fn[KERNEL] = (agk_any_fn *)AGK_PICK(sort_top_k, lowering->cpu);
    node->aux.i[DESCENDING] = !all || node->params[0] != 0;
    const bool by_kernel = dst->ne[0] <= AGK_SORT_MOST && a->ne[0] >= AGK_SORT_LEAST && a->nb[0] == sizeof(float);
    const bool vectors = by_kernel && !AGK_IS_PLAIN(sort_top_k, node->aux.fn[KERNEL]);
    agk_add_units(lowering, run, rows, (vectors ? 0.3 : heap ? 2.0 : 12.0) * (double)a->ne[0] + 50.0);
    return AGK_OK;
}
