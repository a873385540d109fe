/* The quantized types that kernels of products are made for, as lists: LINE(name, KIND, ...) for each of them.
 * kernels.def, the signatures and the kernels read these. Not here: what a type is (types.def). */
#ifndef AGK_MUL_MAT_TYPES_H
#define AGK_MUL_MAT_TYPES_H

/* Blocks of 32. */
#define AGK_MM_OF_32(LINE, ...) \
    LINE(q8_0, Q8_0, __VA_ARGS__) \
    LINE(q4_0, Q4_0, __VA_ARGS__) \
    LINE(q4_1, Q4_1, __VA_ARGS__) \
    LINE(q5_0, Q5_0, __VA_ARGS__) \
    LINE(q5_1, Q5_1, __VA_ARGS__) \
    LINE(iq4_nl, IQ4_NL, __VA_ARGS__) \
    LINE(mxfp4, MXFP4, __VA_ARGS__)

/* Blocks of 256 whose codes lie as they are multiplied. */
#define AGK_MM_OF_256(LINE, ...) \
    LINE(q2_k, Q2_K, __VA_ARGS__) \
    LINE(q3_k, Q3_K, __VA_ARGS__) \
    LINE(q4_k, Q4_K, __VA_ARGS__) \
    LINE(q5_k, Q5_K, __VA_ARGS__) \
    LINE(q6_k, Q6_K, __VA_ARGS__) \
    LINE(iq4_xs, IQ4_XS, __VA_ARGS__)

/* Blocks of 256 whose codes are points of a grid. */
#define AGK_MM_OF_GRIDS(LINE, ...) \
    LINE(iq2_xxs, IQ2_XXS, __VA_ARGS__) \
    LINE(iq2_xs, IQ2_XS, __VA_ARGS__) \
    LINE(iq2_s, IQ2_S, __VA_ARGS__) \
    LINE(iq3_xxs, IQ3_XXS, __VA_ARGS__) \
    LINE(iq3_s, IQ3_S, __VA_ARGS__) \
    LINE(iq1_s, IQ1_S, __VA_ARGS__) \
    LINE(iq1_m, IQ1_M, __VA_ARGS__)

/* Blocks of 256 of -1, 0 and 1. */
#define AGK_MM_TERNARY(LINE, ...) \
    LINE(tq1_0, TQ1_0, __VA_ARGS__) \
    LINE(tq2_0, TQ2_0, __VA_ARGS__)

/* Blocks of 64 with a scale for each 16. */
#define AGK_MM_OF_64(LINE, ...) LINE(nvfp4, NVFP4, __VA_ARGS__)

/* All of them. Packed (kernels/mul_mat_packed.h) their blocks have 32 or 256 elements. */
#define AGK_MM_PACKED_32(LINE, ...) AGK_MM_OF_32(LINE, __VA_ARGS__) AGK_MM_OF_64(LINE, __VA_ARGS__)
#define AGK_MM_PACKED_256(LINE, ...) AGK_MM_OF_256(LINE, __VA_ARGS__) AGK_MM_TERNARY(LINE, __VA_ARGS__)
#define AGK_MM_QUANTIZED(LINE, ...) \
    AGK_MM_PACKED_32(LINE, __VA_ARGS__) AGK_MM_PACKED_256(LINE, __VA_ARGS__) AGK_MM_OF_GRIDS(LINE, __VA_ARGS__)

#endif
