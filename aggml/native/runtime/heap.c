/* The pairing heap of heap.h: trees are merged by making the root with the later key a child of the other root.
 *
 * Not here: locks, the meaning of the entries (wake.c, timer.c). */
#include "heap.h"

static bool earlier(ag_heap *heap, const ag_node *a, const ag_node *b)
{
    ++heap->compared;
    return a->key != b->key ? a->key < b->key : a->turn < b->turn;
}

/* Merges two roots, neither of which has siblings. */
static ag_node *merge(ag_heap *heap, ag_node *a, ag_node *b)
{
    if (a == NULL) return b;
    if (b == NULL) return a;
    if (earlier(heap, b, a)) {
        ag_node *swap = a;
        a = b;
        b = swap;
    }
    b->next = a->child;
    if (b->next != NULL) b->next->before = b;
    b->before = a;
    a->child = b;
    return a;
}

/* Merges a row of siblings into one tree: first pairs from left to right, then the pairs from right to left. This
 * order makes it O(log n). */
static ag_node *merge_row(ag_heap *heap, ag_node *first)
{
    ag_node *pairs = NULL;
    while (first != NULL) {
        ag_node *a = first, *b = a->next;
        first = b != NULL ? b->next : NULL;
        a->next = a->before = NULL;
        if (b != NULL) b->next = b->before = NULL;
        ag_node *pair = merge(heap, a, b);
        pair->next = pairs; /* the list of pairs is in reverse order: the last pair comes first */
        pairs = pair;
    }
    ag_node *all = NULL;
    while (pairs != NULL) {
        ag_node *pair = pairs;
        pairs = pair->next;
        pair->next = NULL;
        all = merge(heap, all, pair);
    }
    return all;
}

void ag_heap_add(ag_heap *heap, ag_node *node, uint64_t key)
{
    *node = (ag_node){.key = key, .turn = heap->turns++};
    heap->least = merge(heap, heap->least, node);
}

void ag_heap_remove(ag_heap *heap, ag_node *node)
{
    ag_node *below = merge_row(heap, node->child);
    if (node == heap->least) {
        heap->least = below;
    } else {
        if (node->before->child == node) {
            node->before->child = node->next;
        } else {
            node->before->next = node->next;
        }
        if (node->next != NULL) node->next->before = node->before;
        heap->least = merge(heap, heap->least, below);
    }
    node->child = node->next = node->before = NULL;
}
