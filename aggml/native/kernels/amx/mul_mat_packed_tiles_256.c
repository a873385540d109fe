/* packed on matrix tiles: types with blocks of 256, see mul_mat_packed_tiles.h. */
#include "mul_mat_packed_tiles.h"

AGK_MM_PACKED_256(AGK_PACKED, )
