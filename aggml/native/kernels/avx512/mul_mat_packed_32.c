/* Products of packed weights with few columns: types with blocks of 32, see mul_mat_packed.h. */
#include "mul_mat_packed.h"

AGK_PACKED(q8_0, Q8_0)
AGK_PACKED(q4_0, Q4_0)
AGK_PACKED(q4_1, Q4_1)
AGK_PACKED(q5_0, Q5_0)
AGK_PACKED(q5_1, Q5_1)
AGK_PACKED(iq4_nl, IQ4_NL)
AGK_PACKED(mxfp4, MXFP4)
