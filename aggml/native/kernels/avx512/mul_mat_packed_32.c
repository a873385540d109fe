/* packed, few columns: types with blocks of 32, see mul_mat_packed.h. */
#include "mul_mat_packed.h"

AGK_MM_OF_32(AGK_PACKED, )
