/* Peaks of bytes and of bf16 in products of small matrices. */
#include <arm_neon.h>

#include "kernels/peak.h"

AGK_PEAK(agk_peak_int8_i8mm, int32x4_t, "w", vdupq_n_s32(0x03030303), 24, "smmla %0.4s, %1.16b, %1.16b", 2 * 32)
AGK_PEAK(agk_peak_bf16_i8mm, int32x4_t, "w", vdupq_n_s32(0x3f013f01), 24,
         ".arch_extension bf16\n\tbfmmla %0.4s, %1.8h, %1.8h", 2 * 16)
