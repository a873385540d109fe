/* Products of packed weights with few columns: types with blocks of 256, see mul_mat_packed.h. */
#include "mul_mat_packed.h"

AGK_PACKED(q2_k, Q2_K)
AGK_PACKED(q3_k, Q3_K)
AGK_PACKED(q4_k, Q4_K)
AGK_PACKED(q5_k, Q5_K)
AGK_PACKED(q6_k, Q6_K)
AGK_PACKED(iq4_xs, IQ4_XS)
