/* Strided copies between host addresses: the bytes that set, get and copy move.
 *
 * Dimensions that lie contiguous on both sides are merged first, so the common cases are one memcpy or a few. */
#include <string.h>

#include "runtime.h"

static void drop_dimension(ag_copy *copy, int d)
{
    for (int i = d; i < 3; ++i) {
        copy->ne[i] = copy->ne[i + 1];
        copy->dst_nb[i] = copy->dst_nb[i + 1];
        copy->src_nb[i] = copy->src_nb[i + 1];
    }
    copy->ne[3] = 1;
    copy->dst_nb[3] = copy->src_nb[3] = 0;
}

void ag_copy_simplify(ag_copy *copy)
{
    int n = 4;
    for (int d = 0; d < n;) { /* extents of 1 carry no stride */
        if (copy->ne[d] == 1) {
            drop_dimension(copy, d);
            --n;
        } else {
            ++d;
        }
    }
    if (n > 0 && copy->dst_nb[0] == (int64_t)copy->item && copy->src_nb[0] == (int64_t)copy->item) {
        copy->item *= (size_t)copy->ne[0];
        drop_dimension(copy, 0);
        --n;
        while (n > 0 && copy->dst_nb[0] == (int64_t)copy->item && copy->src_nb[0] == (int64_t)copy->item) {
            copy->item *= (size_t)copy->ne[0];
            drop_dimension(copy, 0);
            --n;
        }
    }
}

static inline void copy_items(uint8_t *dst, int64_t dst_nb, const uint8_t *src, int64_t src_nb, int64_t n, size_t item)
{
    for (int64_t i = 0; i < n; ++i) memcpy(dst + i * dst_nb, src + i * src_nb, item);
}

static void copy_row(const ag_copy *c, uint8_t *dst, const uint8_t *src)
{
    const int64_t n = c->ne[0], d = c->dst_nb[0], s = c->src_nb[0];
    switch (c->item) { /* constant sizes become single moves */
    case 1: copy_items(dst, d, src, s, n, 1); break;
    case 2: copy_items(dst, d, src, s, n, 2); break;
    case 4: copy_items(dst, d, src, s, n, 4); break;
    case 8: copy_items(dst, d, src, s, n, 8); break;
    default: copy_items(dst, d, src, s, n, c->item); break;
    }
}

void ag_copy_run(const ag_copy *c)
{
    if (c->item == 0) return;
    if (c->ne[0] == 1 && c->ne[1] == 1 && c->ne[2] == 1 && c->ne[3] == 1) {
        memmove(c->dst, c->src, c->item); /* a view may be copied onto a neighbour that it overlaps */
        return;
    }
    for (int64_t k = 0; k < c->ne[3]; ++k) {
        for (int64_t j = 0; j < c->ne[2]; ++j) {
            for (int64_t i = 0; i < c->ne[1]; ++i) {
                copy_row(c, c->dst + k * c->dst_nb[3] + j * c->dst_nb[2] + i * c->dst_nb[1],
                         c->src + k * c->src_nb[3] + j * c->src_nb[2] + i * c->src_nb[1]);
            }
        }
    }
}
