/* Tokens of recurrences, avx2: sums in lanes, against lower/recurrent.c within 1e-6 of the largest. */
#include "math.h"

#include "kernels/vec/recurrent.h"

void agk_token_outer_avx2(bool gla, const agk_token *t)
{
    if (gla)
        v_outer(true, t);
    else
        v_outer(false, t);
}

void agk_token_wkv7_avx2(const agk_token *t)
{
    v_wkv7(t);
}

void agk_token_delta_avx2(const agk_token *t)
{
    v_delta(t);
}

void agk_token_scan_avx2(const agk_token *t)
{
    v_scan(t);
}

void agk_token_decays_avx2(int64_t n, float *y, const float *x, float scale)
{
    v_decays(n, y, x, scale);
}
