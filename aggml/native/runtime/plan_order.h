/* Assigns each step of a plan its place among the others (plan_order.c). Used by plan.c alone. */
#ifndef AG_PLAN_ORDER_H
#define AG_PLAN_ORDER_H

#include "runtime.h"

typedef struct ag_order ag_order;

typedef struct ag_node_steps {
    const agk_node *node;
    ag_step *steps; /* the steps of this node, n_steps of them; their places are filled in */
    int n_steps;
    int writes_leaf;
    uint64_t cost;
    size_t work_size;
    /* columns in work memory: this node lays them out for others; it takes those of an earlier node */
    bool lays_columns, takes_columns;
    bool alone; /* nothing may run together with it */
} ag_node_steps;

ag_order *ag_order_new(void);
void ag_order_free(ag_order *order);
size_t ag_order_work(ag_order *order, size_t size);         /* the offset of a node's work memory from work_base */
bool ag_order_add(ag_order *order, const ag_node_steps *n); /* false: no memory */
bool ag_order_steps(const ag_order *order, ag_step *steps, size_t n); /* sorts them; false: no memory */
/* Fills in `fetches` of each step. */
void ag_order_fetches(ag_step *steps, size_t n);
void ag_order_count(ag_step *steps, size_t n); /* fills in `ahead` of steps that are in order */

uintptr_t ag_view_end(const agk_view *v);
bool ag_writes_more(const agk_node *node); /* whether it writes more than its result, or nobody knows what */

#endif
