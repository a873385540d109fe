/* The facts of types.def as constants, for kernels that are templates of one type: the compiler knows every value. Not
 * here: names and functions of types (types.h), the layouts of packed weights (mul_mat_packed_types.h). */
#ifndef AGK_TYPE_FACTS_H
#define AGK_TYPE_FACTS_H

#include <stdbool.h>
#include <stddef.h>

#include "inline.h"
#include "table/types.h"

typedef struct agk_type_facts {
    int block;    /* elements of a block */
    size_t bytes; /* of a block */
    int scale;    /* elements that share a scale */
    bool minimum; /* the value of an element is its code times the scale, minus a minimum */
} agk_type_facts;

AGK_INLINE agk_type_facts agk_facts(int type)
{
    switch (type) {
#define AGK_TYPE(NAME, id, symbol, name, numpy, block, bytes, alignment, group, dot, reads, writes, fits, write_ns, \
                 scale, minimum) \
    case AGK_##NAME: return (agk_type_facts){block, bytes, scale, minimum};
#include "table/types.def"
    default: return (agk_type_facts){0};
    }
}

#endif
