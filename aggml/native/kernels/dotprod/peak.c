/* The peak of bytes in dot products of four. */
#include <arm_neon.h>

#include "kernels/peak.h"

AGK_PEAK(agk_peak_int8_dotprod, int32x4_t, "w", vdupq_n_s32(0x03030303), 24, "sdot %0.4s, %1.16b, %1.16b", 2 * 16)
