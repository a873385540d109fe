/* The first elements of a descending order, in plain C, for small k.
 *
 * Nearly no branch depends on the values: half of them would be mispredicted. Instead, the elements that reach a bound
 * are collected, and their keys are placed by counting how many are smaller. Not here: keys of other rows, the caller
 * (lower/sort.c). */
#include "kernels/sort.h"
#include "table/kernel_types.h"

enum { PART = AGK_SORT_LEAST };

/* A bound below which none of the k largest elements of a contiguous row is: the k-th of the largest elements of so
 * many lanes. */
static inline float bound_of(int64_t k, const char *row, int64_t n, const int lanes)
{
    float most[PART], values[PART], bound = -INFINITY;
    int32_t above[PART] = {0};
    for (int j = 0; j < PART; ++j) most[j] = -INFINITY;
    for (int64_t i = 0; i + PART <= n; i += PART) {
        memcpy(values, row + i * (int64_t)sizeof(float), sizeof values);
        for (int j = 0; j < PART; ++j) most[j] = values[j] > most[j] ? values[j] : most[j];
    }
    for (int j = 0; j < PART - lanes; ++j) most[j] = most[j + lanes] > most[j] ? most[j + lanes] : most[j];
    for (int i = 0; i < lanes; ++i) {
        const float other = most[i];
        for (int j = 0; j < lanes; ++j) above[j] += other >= most[j];
    }
    for (int j = 0; j < lanes; ++j) most[j] = above[j] >= k ? most[j] : -INFINITY;
    for (int j = 0; j < lanes; ++j) bound = most[j] > bound ? most[j] : bound;
    return bound;
}

/* With twice as many lanes as elements are wanted, some 1.4 k random numbers reach the bound. */
static float bound_of_top_k(int64_t k, const char *row, int64_t n)
{
    return k <= AGK_SORT_MOST / 2 ? bound_of(k, row, n, AGK_SORT_MOST) : bound_of(k, row, n, PART);
}

bool agk_sort_top_k_scalar(int64_t n, int64_t k, const void *x, int32_t *out)
{
    const char *row = x;
    const float bound = bound_of_top_k(k, row, n);
    int32_t places[AGK_SORT_CANDIDATES + PART];
    uint64_t candidates[AGK_SORT_CANDIDATES];
    int64_t found = 0;
    for (int64_t i = 0; i < n; i += PART) {
        const int64_t count = n - i < PART ? n - i : PART;
        float values[PART] = {0};
        int32_t reach = 0;
        memcpy(values, row + i * (int64_t)sizeof(float), (size_t)count * sizeof(float));
        for (int j = 0; j < PART; ++j) reach |= values[j] >= bound;
        if (!reach) continue;
        for (int64_t j = 0; j < count; ++j) {
            places[found] = (int32_t)(i + j);
            found += values[j] >= bound;
        }
        if (found > AGK_SORT_CANDIDATES) return false;
    }
    if (found < k) return false;
    for (int64_t i = 0; i < found; ++i) {
        int32_t bits;
        memcpy(&bits, row + places[i] * (int64_t)sizeof(float), sizeof bits);
        candidates[i] = (uint64_t)((uint32_t)agk_sort_descending(bits) ^ 0x80000000u) << 32 | (uint64_t)places[i];
    }
    for (int64_t i = 0; i < found; ++i) {
        int64_t smaller = 0;
        for (int64_t j = 0; j < found; ++j) smaller += candidates[j] < candidates[i];
        if (smaller < k) out[smaller] = places[i];
    }
    return true;
}
