/* Overwrites the slots by which a loaded library calls a function. */
#ifndef AG_GGML_REDIRECT_H
#define AG_GGML_REDIRECT_H

#include <stdbool.h>

/* Makes a library that dlopen returned call `function` where it calls `name`; false: it has no slot of that name. */
bool ag_ggml_redirect(void *handle, const char *name, void (*function)(void));

#endif
