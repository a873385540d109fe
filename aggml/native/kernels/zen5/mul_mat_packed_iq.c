/* packed, few columns: types of codebooks, see kernels/zen4/mul_mat_packed.h. */
#include "lines.h"
#include "kernels/zen4/mul_mat_packed.h"

AGK_MM_OF_GRIDS(AGK_PACKED, )
