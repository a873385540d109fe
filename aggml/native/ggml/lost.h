/* What is done for a thread of a library that stops for good (lost.c). */
#ifndef AG_GGML_LOST_H
#define AG_GGML_LOST_H

/* Called by a thread of a library that met an assertion and can neither go on nor return. */
void ag_ggml_stranded(const char *message);

#endif
