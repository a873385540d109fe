/* Products of packed weights with few columns, AVX-VNNI: see kernels/vec/mul_mat_packed_narrow.h. */
#define NARROW_VNNI 1
#define NARROW_NAME(type) agk_mm_packed_##type##_avxvnni
#include "kernels/vec/mul_mat_packed_narrow.h"

AGK_NARROW_KERNELS
