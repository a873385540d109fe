/* Peaks in plain C: on single numbers; memory is read 16 bytes at a time, as every processor of 64 bits can. */
#include "kernels/peak.h"

#if defined(__x86_64__)
#define LETTER "x"
#elif defined(__aarch64__)
#define LETTER "w"
#else
#define LETTER "m"
#endif
typedef uint64_t words __attribute__((vector_size(16), may_alias));

AGK_PEAK_READ(agk_peak_read_scalar, words, LETTER)

enum { CHAINS = 12 };

double agk_peak_f32_scalar(int64_t turns)
{
    float sums[CHAINS] = {0};
    volatile float given = 0.5f; /* volatile, because the compiler would compute the loop with a constant */
    const float x = given;
    for (int64_t turn = 0; turn < turns; ++turn) {
        AGK_UNROLL for (int i = 0; i < CHAINS; ++i) sums[i] = sums[i] * x + x;
    }
    for (int i = 0; i < CHAINS; ++i) given = sums[i];
    return 2.0 * CHAINS;
}

double agk_peak_int8_scalar(int64_t turns)
{
    int32_t sums[CHAINS] = {0};
    volatile int32_t given = 3;
    const int32_t x = given;
    for (int64_t turn = 0; turn < turns; ++turn) {
        AGK_UNROLL for (int i = 0; i < CHAINS; ++i) sums[i] = (sums[i] & 0xff) * x + x;
    }
    for (int i = 0; i < CHAINS; ++i) given = sums[i];
    return 2.0 * CHAINS;
}
