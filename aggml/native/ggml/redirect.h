/* Slots by which one loaded library calls a function, filled anew. */
#ifndef AG_GGML_REDIRECT_H
#define AG_GGML_REDIRECT_H

#include <stdbool.h>

/* Let a library that dlopen gave call `function` where it calls `name`; false: it has no slot of that name. */
bool ag_ggml_redirect(void *handle, const char *name, void (*function)(void));

#endif
