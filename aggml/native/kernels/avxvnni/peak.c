/* The peak of bytes on 256-bit registers with VNNI. */
#include <immintrin.h>

#include "kernels/peak.h"

AGK_PEAK(agk_peak_int8_avxvnni, __m256i, "x", _mm256_set1_epi8(1), 12, "%{vex%} vpdpbusd %1, %1, %0", 2 * 32)
