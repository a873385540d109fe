/* packed, few columns: types with blocks of 32, see kernels/amd512/mul_mat_packed.h. */
#include "lines.h"
#include "kernels/amd512/mul_mat_packed.h"

AGK_MM_PACKED_32(AGK_PACKED, )
