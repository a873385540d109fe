/* packed, few columns: types of codebooks, see kernels/amd512/mul_mat_packed.h. */
#include "lines.h"
#include "kernels/amd512/mul_mat_packed.h"

AGK_MM_OF_GRIDS(AGK_PACKED, )
