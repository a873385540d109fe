/* Packed weights as their owner sees them: made, counted, limited, freed. Not here: their use (lower/weights.h). */
#ifndef AG_PACKING_H
#define AG_PACKING_H

#include "lower/weights.h"
#include "runtime.h"

agk_packed *ag_packed_acquire(agk_weights *weights, const agk_view *a); /* `weights` of an ag_storage; see weights.h */
void ag_packed_release(agk_packed *packed);
void ag_packed_drop(agk_packed *list); /* of a storage that goes */

size_t ag_packed_in_use(void); /* bytes */
size_t ag_packed_limit(void);
void ag_packed_set_limit(size_t bytes); /* for those to come */

#endif
