/* A heap whose entries lie in what they stand for: no memory of its own, so that to wait can not fail.
 *
 * A pairing heap: the least key first, of equal keys the one that came first. Adding is O(1), taking the least and
 * taking any other out O(log n) each, averaged over what was added. Whoever owns it locks it. */
#ifndef AG_HEAP_H
#define AG_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ag_node {
    uint64_t key;
    uint64_t turn; /* of equal keys the lower one is first; set by ag_heap_add */
    struct ag_node *child, *next;
    struct ag_node *before; /* whose child or next this is; NULL: the root, or in no heap */
} ag_node;

typedef struct ag_heap {
    ag_node *least; /* NULL: empty */
    uint64_t turns;
    uint64_t compared; /* how often two entries were: the work that was done, for tests */
} ag_heap;

void ag_heap_add(ag_heap *heap, ag_node *node, uint64_t key);
void ag_heap_remove(ag_heap *heap, ag_node *node); /* it is in this heap */

#endif
