/* Tokens of recurrences, AVX2: sums in lanes, against plain C within 1e-6 of the largest. */
#include "math.h"

#include "kernels/vec/recurrent.h"

V_RECURRENT_KERNELS(avx2)
