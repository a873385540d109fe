/* Products of packed weights with few columns, AVX-VNNI: see vec/packed_narrow.h. */
#define NARROW_VNNI 1
#define NARROW_NAME(type) agk_mm_packed_##type##_avxvnni
#include "../vec/packed_narrow.h"

AGK_NARROW_KERNELS
