/* The peak of f32 on 128-bit registers: 24 of the 32 are sums. */
#include <arm_neon.h>

#include "kernels/peak.h"

AGK_PEAK(agk_peak_f32_neon, float32x4_t, "w", vdupq_n_f32(0.5f), 24, "fmla %0.4s, %1.4s, %1.4s", 2 * 4)
