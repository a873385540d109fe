/* A heap whose entries are members of the objects that they stand for. It allocates no memory, so a wait cannot fail.
 *
 * It is a pairing heap: the least key comes first, and of equal keys the one that was added first. Adding is O(1).
 * Taking the least, or removing any other entry, is O(log n) on average over the entries that were added. The owner
 * locks it. */
#ifndef AG_HEAP_H
#define AG_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ag_node {
    uint64_t key;
    uint64_t turn; /* orders equal keys, the lower turn first; set by ag_heap_add */
    struct ag_node *child, *next;
    /* the node whose `child` or `next` points to this one; NULL: this is the root, or in no heap */
    struct ag_node *before;
} ag_node;

typedef struct ag_heap {
    ag_node *least; /* NULL: empty */
    uint64_t turns;
    uint64_t compared; /* how often two entries were compared: the work that was done, for tests */
} ag_heap;

void ag_heap_add(ag_heap *heap, ag_node *node, uint64_t key);
void ag_heap_remove(ag_heap *heap, ag_node *node); /* the node must be in this heap */

#endif
