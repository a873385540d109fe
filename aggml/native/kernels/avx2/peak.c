/* Peak rates on 256-bit registers: 12 of the 16 registers are sums; 8 for bytes, whose products need a register in
 * between. */
#include <immintrin.h>

#include "kernels/peak.h"

AGK_PEAK_READ(agk_peak_read_avx2, __m256i, "x")
AGK_PEAK(agk_peak_f32_avx2, __m256, "x", _mm256_set1_ps(0.5f), 12, "vfmadd231ps %1, %1, %0", 2 * 8)

/* The instructions of a product of bytes without VNNI. */
double agk_peak_int8_avx2(int64_t turns)
{
    enum { CHAINS = 8 };
    const __m256i x = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1);
    __m256i sums[CHAINS];
    AGK_UNROLL for (int i = 0; i < CHAINS; ++i) sums[i] = x;
    for (int64_t turn = 0; turn < turns; ++turn) {
        AGK_UNROLL for (int i = 0; i < CHAINS; ++i)
        {
            __m256i pairs;
            __asm__ volatile("vpmaddubsw %2, %2, %1\n\tvpmaddwd %3, %1, %1\n\tvpaddd %1, %0, %0"
                             : "+x"(sums[i]), "=&x"(pairs)
                             : "x"(x), "x"(ones));
        }
    }
    return 2.0 * 32 * CHAINS;
}
