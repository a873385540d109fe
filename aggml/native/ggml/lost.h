/* Devices whose calls can no longer end, between lost.c and the rest of ggml/. */
#ifndef AG_GGML_LOST_H
#define AG_GGML_LOST_H

#include "state.h"

/* Called by a thread of a library that met an assertion and can neither go on nor return. */
void ag_ggml_stranded(const char *message);
/* queue.c: has another thread take over the queues of a lost device that are inside a call. */
void ag_ggml_take_over(ag_ggml_device *device);
/* queue.c: whether a queue is inside a call that began before `since`. */
bool ag_ggml_in_call(ag_ggml_device *device, uint64_t since);
/* library.c */
void ag_ggml_each_device(void (*visit)(ag_ggml_device *device, void *user), void *user);

#endif
