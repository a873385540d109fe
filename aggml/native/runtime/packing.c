/* Packed weights: their owner, and when a group of rows is packed (lower/weights.h).
 *
 * Memory is mapped when a plan is compiled, and touched when a group is first multiplied. So only what is used gets
 * packed, and all threads of a plan share the packing. A storage counts its writes, and a group remembers the count
 * at which it was packed. A write that is ordered with the products comes between two of them, so no group is packed
 * anew while a thread reads it. When all of a matrix is packed, its pages of a file are given back. Not here: layouts
 * (kernels/scalar/mul_mat_packed.c). */
#define _DEFAULT_SOURCE /* madvise */
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/mul_mat_packed.h"
#include "table/kernel_types.h"
#include "packing.h"
#include "topology.h"

/* The mark of a group that is being packed, which includes the process: in the child of a fork, a group that a
 * thread of the parent was packing will not be finished, so it is packed anew there. */
#define BUSY (UINT64_C(1) << 63)

static uint64_t busy_here(void)
{
    return BUSY | atomic_load(&ag_generation);
}

typedef struct packing {
    agk_packed seen; /* the first member: the part that steps see */
    atomic_int refs;
    agk_packed *next; /* next packed copy of the same storage; never changes once it is in the list */
    const _Atomic(uint64_t) *writes;
    agk_view from; /* its address is absolute */
    bool is_file;  /* `from` lies in a private mapping of a file */
    const agk_packed_layout *layout;
    agk_mm_packed_group_fn *pack;
    size_t mapped, group_bytes;
    int64_t per_matrix, n_groups;
    atomic_llong left;            /* groups that were never packed */
    _Atomic(uint64_t) *packed_at; /* for each group: 1 + the count of writes, 0 if it was never packed, or busy */
} packing;

static packing *of(agk_packed *seen)
{
    return (packing *)(void *)seen;
}

static atomic_size_t in_use, limit;

size_t ag_packed_in_use(void)
{
    return atomic_load(&in_use);
}

size_t ag_packed_of(const ag_storage *storage)
{
    size_t bytes = 0;
    /* the list grows at its beginning only, and lives as long as the storage */
    for (agk_packed *p = atomic_load(&storage->packed); p != NULL; p = of(p)->next) bytes += of(p)->mapped;
    return bytes;
}

static size_t mapped_bytes(size_t groups, size_t group_bytes)
{
    return (groups * group_bytes + 4095) & ~(size_t)4095;
}

size_t ag_packed_size(int type, int64_t k, int64_t rows, int64_t matrices)
{
    const agk_packed_layout *layout = agk_packed_layout_of(type);
    if (layout == NULL) return 0;
    const int64_t groups = (rows + AGK_PACKED_ROWS - 1) / AGK_PACKED_ROWS * matrices;
    return mapped_bytes((size_t)groups, agk_packed_group_bytes(layout, k));
}

size_t ag_packed_limit(void)
{
    size_t bytes = atomic_load(&limit);
    /* the default is half of the memory; the other half is left for the files that the weights come from */
    if (bytes == 0) {
        const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
        bytes = pages > 0 && page > 0 ? (size_t)pages / 2 * (size_t)page : 1;
        ag_packed_set_limit(bytes);
    }
    return bytes - 1;
}

void ag_packed_set_limit(size_t bytes)
{
    atomic_store(&limit, bytes == SIZE_MAX ? bytes : bytes + 1); /* 0: not set yet */
}

void ag_packed_release(agk_packed *packed)
{
    packing *p = of(packed);
    if (p == NULL || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
    if (p->seen.data != NULL) {
        ag_unmap(p->seen.data, p->mapped);
        atomic_fetch_sub(&in_use, p->mapped);
    }
    free(p->packed_at);
    free(p);
}

void ag_packed_drop(agk_packed *list)
{
    while (list != NULL) {
        agk_packed *next = of(list)->next;
        ag_packed_release(list);
        list = next;
    }
}

static bool reserve(size_t bytes)
{
    size_t before = atomic_load(&in_use); /* never too high, not even for a moment, because a fork may happen then */
    do {
        if (before + bytes > ag_packed_limit()) return false;
    } while (!atomic_compare_exchange_weak(&in_use, &before, before + bytes));
    return true;
}

static const char *ready(agk_packed *packed, int64_t i);

static packing *make(ag_storage *weights, const agk_view *a, const agk_packed_layout *layout)
{
    packing *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    atomic_init(&p->refs, 2); /* one reference for the list, one for the caller */
    p->writes = &weights->writes;
    p->from = *a;
    p->is_file = weights->is_file;
    p->layout = layout;
    p->pack = AGK_PICK(mm_packed_group, agk_cpu_features());
    p->group_bytes = agk_packed_group_bytes(layout, a->ne[0]);
    p->per_matrix = (a->ne[1] + AGK_PACKED_ROWS - 1) / AGK_PACKED_ROWS;
    p->n_groups = p->per_matrix * a->ne[2] * a->ne[3];
    atomic_init(&p->left, p->n_groups);
    p->packed_at = calloc((size_t)p->n_groups, sizeof *p->packed_at);
    p->mapped = mapped_bytes((size_t)p->n_groups, p->group_bytes);
    if (p->packed_at == NULL || !reserve(p->mapped)) {
        free(p->packed_at);
        free(p);
        return NULL;
    }
    void *data = mmap(NULL, p->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        atomic_fetch_sub(&in_use, p->mapped);
        free(p->packed_at);
        free(p);
        return NULL;
    }
#ifdef MADV_HUGEPAGE
    madvise(data, p->mapped, MADV_HUGEPAGE);
#endif
    p->seen = (agk_packed){.data = data, .ready = ready};
    const size_t matrix = (size_t)p->per_matrix * p->group_bytes; /* the matrix whose rows the threads share */
    for (size_t at = 0; at < p->mapped && matrix > 0; at += matrix) ag_place(p->seen.data + at, matrix);
    return p;
}

static bool same(const agk_view *x, const agk_view *y)
{
    return x->addr == y->addr && x->type == y->type && memcmp(x->ne, y->ne, sizeof x->ne) == 0 &&
           memcmp(x->nb, y->nb, sizeof x->nb) == 0;
}

agk_packed *ag_packed_acquire(agk_weights *weights, const agk_view *a)
{
    ag_storage *storage = (ag_storage *)(void *)weights; /* its first member */
    const agk_packed_layout *layout = agk_packed_layout_of(a->type);
    if (layout == NULL || a->arena_mask != 0 || agk_nelements(a) == 0) return NULL;
    agk_packed *first = atomic_load(&storage->packed);
    packing *made = NULL;
    for (;;) {
        for (agk_packed *p = first; p != NULL; p = of(p)->next) {
            if (!same(&of(p)->from, a)) continue;
            if (made != NULL) {
                ag_packed_release(&made->seen);
                ag_packed_release(&made->seen);
            }
            atomic_fetch_add(&of(p)->refs, 1);
            return p;
        }
        if (made == NULL) made = make(storage, a, layout);
        if (made == NULL) return NULL;
        made->next = first;
        if (atomic_compare_exchange_strong(&storage->packed, &first, &made->seen)) return &made->seen;
    }
}

static void pack(const packing *p, int64_t i)
{
    const agk_view *a = &p->from;
    const int64_t matrix = i / p->per_matrix, row = i % p->per_matrix * AGK_PACKED_ROWS;
    const int64_t rows = a->ne[1] - row < AGK_PACKED_ROWS ? a->ne[1] - row : AGK_PACKED_ROWS;
    const uintptr_t from =
        a->addr + (uintptr_t)(matrix % a->ne[2] * a->nb[2] + matrix / a->ne[2] * a->nb[3] + row * a->nb[1]);
    p->pack(a->type, (const char *)from, (size_t)a->nb[1], rows, a->ne[0], p->seen.data + (size_t)i * p->group_bytes);
}

/* Gives back the pages of a file that only this matrix fills. Of a Qwen2.5 0.5B (Q4_K_M) 973 MB were resident with
 * them, 829 without. They stay in the system's cache of files while there is room, so reading a row again, as for a
 * token of a vocabulary that the output shares, costs 0.1 us for a page. Pages that somebody wrote to are no longer the
 * file's, so nothing is given back then. */
static void give_back(const packing *p)
{
#ifdef __linux__
    const agk_view *a = &p->from;
    const int64_t rows = a->ne[1] * a->ne[2] * a->ne[3];
    if (!p->is_file || atomic_load(p->writes) != 0) return;
    if (a->nb[2] != a->ne[1] * a->nb[1] || a->nb[3] != a->ne[2] * a->nb[2]) return; /* a part of something else */
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = (a->addr + page - 1) & ~(page - 1),
                    end = (a->addr + (uintptr_t)(rows * a->nb[1])) & ~(page - 1);
    if (first < end) madvise((void *)first, end - first, MADV_DONTNEED); /* NOLINT */
#else
    (void)p;
#endif
}

static const char *ready(agk_packed *packed, int64_t i)
{
    packing *p = of(packed);
    const uint64_t now = atomic_load_explicit(p->writes, memory_order_acquire) + 1;
    uint64_t then = atomic_load_explicit(&p->packed_at[i], memory_order_acquire);
    while (then != now) {
        const uint64_t busy = busy_here();
        if (then == busy) { /* another stream is packing it: some us, unless its thread lost its core */
            sched_yield();
            then = atomic_load_explicit(&p->packed_at[i], memory_order_acquire);
        } else if (atomic_compare_exchange_strong(&p->packed_at[i], &then, busy)) {
            pack(p, i);
            if (then == 0 && atomic_fetch_sub(&p->left, 1) == 1) give_back(p);
            atomic_store_explicit(&p->packed_at[i], now, memory_order_release);
            then = now;
        }
    }
    return p->seen.data + (size_t)i * p->group_bytes;
}
