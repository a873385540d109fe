/* Products of packed weights with few columns, AVX2: see kernels/vec/mul_mat_packed_narrow.h. */
#define NARROW_VNNI 0
#define NARROW_NAME(type) agk_mm_packed_##type##_avx2
#include "kernels/vec/mul_mat_packed_narrow.h"

AGK_NARROW_KERNELS
