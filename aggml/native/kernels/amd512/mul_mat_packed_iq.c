/* packed, few columns: types of codebooks, see mul_mat_packed.h. */
#include "lines.h"
#include "mul_mat_packed.h"

AGK_MM_OF_GRIDS(AGK_PACKED, )
