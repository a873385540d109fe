/* packed, few columns: types with blocks of 256, see mul_mat_packed.h. */
#include "lines.h"
#include "mul_mat_packed.h"

AGK_MM_PACKED_256(AGK_PACKED, )
