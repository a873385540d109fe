/* norm, rms_norm and l2_norm, NEON. Against plain C (sums in double): within 1e-6 of the row's largest element. */
#include "math.h"

#include "kernels/vec/norm.h"

V_NORM_KERNELS(neon)
