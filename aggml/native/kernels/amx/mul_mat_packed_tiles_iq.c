/* packed on matrix tiles: types of codebooks, see mul_mat_packed_tiles.h. */
#include "mul_mat_packed_tiles.h"

AGK_MM_OF_GRIDS(AGK_PACKED, )
