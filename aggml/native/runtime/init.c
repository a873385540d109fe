/* Process-wide set-up: the fork handler. */
#include "internal.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void in_child(void)
{
    atomic_fetch_add(&ag_generation, 1);
    ag_error_forked();
    ag_courtesy_forked();
    ag_notifiers_forked();
    ag_timer_forked();
    ag_relay_forked();
}

static void install(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

void ag_runtime_init(void)
{
    pthread_once(&once, install);
}
