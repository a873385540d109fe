/* Rows of quantized types unpacked to bytes, for the schemes bytes and shorts, on vectors of any width.
 *
 * The readers of floats (dequant_*.h) unpack one block each and call v_out for the result. The includer defines v_out
 * so that it stores bytes, and includes them; for q8_0, q4_0 and tq1_0 it defines v_<type>_to_f32 itself. Here each
 * reader becomes a loop over a row, <type>_to_f32_bytes, and AGK_OF_ALL(ROW) names them all. */
#undef V_ROWS
#define V_ROWS(kernel, block, size) \
    static void kernel##_bytes(const void *src, v_dst *dst, int64_t n) \
    { \
        const block *x = src; \
        for (; n >= (size); n -= (size), dst += (size), ++x) v_##kernel(x, dst); \
    }
V_ROWS_32
V_ROWS_K
V_ROWS_IQ
V_ROWS(q8_0_to_f32, agk_block_q8_0, 32)
V_ROWS(q4_0_to_f32, agk_block_q4_0, 32)
V_ROWS(tq1_0_to_f32, agk_block_tq1_0, 256)

#define AGK_OF_ALL(ROW) \
    ROW(Q8_0, q8_0) \
    ROW(Q4_0, q4_0) \
    ROW(Q4_1, q4_1) \
    ROW(Q5_0, q5_0) \
    ROW(Q5_1, q5_1) \
    ROW(IQ4_NL, iq4_nl) \
    ROW(MXFP4, mxfp4) \
    ROW(NVFP4, nvfp4) \
    ROW(Q1_0, q1_0) \
    ROW(Q2_0, q2_0) \
    ROW(Q2_K, q2_k) \
    ROW(Q3_K, q3_k) \
    ROW(Q4_K, q4_k) \
    ROW(Q5_K, q5_k) \
    ROW(Q6_K, q6_k) \
    ROW(IQ4_XS, iq4_xs) \
    ROW(TQ2_0, tq2_0) \
    ROW(TQ1_0, tq1_0) \
    ROW(IQ2_XXS, iq2_xxs) \
    ROW(IQ2_XS, iq2_xs) \
    ROW(IQ2_S, iq2_s) \
    ROW(IQ3_XXS, iq3_xxs) \
    ROW(IQ3_S, iq3_s) \
    ROW(IQ1_S, iq1_s) \
    ROW(IQ1_M, iq1_m)
