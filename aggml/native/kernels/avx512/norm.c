/* norm, rms_norm and l2_norm, AVX-512. Against plain C (sums in double): within 1e-6 of the row's largest element. */
#include "math.h"

#include "kernels/vec/norm.h"

V_NORM_KERNELS(avx512)
