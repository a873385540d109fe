/* rope, NEON. Against plain C: sines and cosines within 2e-7. */
#include "math.h"

#include "kernels/vec/rope.h"

V_ROPE_KERNELS(neon)
