/* packed, few columns: types with blocks of 32, see mul_mat_packed.h. */
#include "lines.h"
#include "mul_mat_packed.h"

AGK_MM_PACKED_32(AGK_PACKED, )
