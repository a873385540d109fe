/* Packed weights, for their owner: making, counting, limiting and freeing them. Not here: their use
 * (lower/weights.h). */
#ifndef AG_PACKING_H
#define AG_PACKING_H

#include "lower/weights.h"
#include "runtime.h"

/* `weights` are those of an ag_storage; see weights.h */
agk_packed *ag_packed_acquire(agk_weights *weights, const agk_view *a);
void ag_packed_release(agk_packed *packed);
void ag_packed_drop(agk_packed *list); /* called when the storage is freed */

size_t ag_packed_in_use(void);                  /* bytes */
size_t ag_packed_of(const ag_storage *storage); /* bytes of the packed copies of one storage */
/* bytes that a packed copy of such a matrix, or of such matrices, would take; 0: its type has no packed layout */
size_t ag_packed_size(int type, int64_t k, int64_t rows, int64_t matrices);
size_t ag_packed_limit(void);
void ag_packed_set_limit(size_t bytes); /* for copies made from now on */

#endif
