/* Peaks on 512-bit registers: 24 of the 32 are sums. */
#include <immintrin.h>

#include "kernels/peak.h"

AGK_PEAK_READ(agk_peak_read_avx512, __m512i, "v")
AGK_PEAK(agk_peak_f32_avx512, __m512, "v", _mm512_set1_ps(0.5f), 24, "vfmadd231ps %1, %1, %0", 2 * 16)
AGK_PEAK(agk_peak_bf16_avx512, __m512i, "v", _mm512_set1_epi16(0x3f01), 24, "vdpbf16ps %1, %1, %0", 2 * 32)
AGK_PEAK(agk_peak_int8_avx512, __m512i, "v", _mm512_set1_epi16(0x3f01), 24, "vpdpbusd %1, %1, %0", 2 * 64)
