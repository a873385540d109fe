/* A timer is a member of the object that sleeps. It is set for one time at most, and fires on a thread of its bank. */
#ifndef AG_TIMER_H
#define AG_TIMER_H

#include "base.h"
#include "heap.h"

typedef struct ag_timer ag_timer;

typedef struct ag_timer_calls {
    /* Whether the sleep is to end at once. Called while the timer is set, with the lock of its bank held. */
    bool (*is_over)(ag_timer *timer, const void *what);
    /* The time has come, or somebody was in a hurry. No lock is held, and the timer may be set again. */
    void (*on_time)(ag_timer *timer, uint64_t ticket);
} ag_timer_calls;

struct ag_timer {
    ag_node node;    /* the key is the deadline; like the ticket it is guarded by the lock of the bank's timers */
    uint64_t ticket; /* what sleeps; 0: nothing */
    int bank;        /* written once */
    const ag_timer_calls *calls;
};

/* Timers are assigned to the banks in turn. */
void ag_timer_init(ag_timer *timer, const ag_timer_calls *calls);
/* False: the system refused to start the thread. The object must live until the timer fires. */
bool ag_timer_add(ag_timer *timer, uint64_t ticket, uint64_t deadline, const void *what);
/* Fires now, if one of these tickets sleeps. Not in the child of a fork: such a timer is the parent's. */
void ag_timer_hurry(ag_timer *timer, uint64_t first, uint64_t last);

#endif
