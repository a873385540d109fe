/* Where steps of a plan have their place among the others (plan_order.c), for plan.c alone. */
#ifndef AG_PLAN_ORDER_H
#define AG_PLAN_ORDER_H

#include "runtime.h"

typedef struct ag_order ag_order;

typedef struct ag_node_steps {
    const agk_node *node;
    ag_step *steps; /* of this node, n_steps of them; they get their places */
    int n_steps;
    int writes_leaf;
    uint64_t cost;
    size_t work_size;
    bool lays_columns, takes_columns; /* in work memory: for others, and of an earlier node */
    bool alone;                       /* nothing runs beside it */
} ag_node_steps;

ag_order *ag_order_new(void);
void ag_order_free(ag_order *order);
size_t ag_order_work(ag_order *order, size_t size);         /* where a node's work memory begins, from work_base on */
bool ag_order_add(ag_order *order, const ag_node_steps *n); /* false: no memory */
bool ag_order_steps(const ag_order *order, ag_step *steps, size_t n); /* sorts them; false: no memory */
/* Fill in `fetches` of each step. */
void ag_order_fetches(ag_step *steps, size_t n);
void ag_order_count(ag_step *steps, size_t n); /* of steps in order: what is ahead of each */

uintptr_t ag_view_end(const agk_view *v);
bool ag_writes_more(const agk_node *node); /* than its result, or nobody knows what */

#endif
