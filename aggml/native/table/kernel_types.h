/* The signature of each kernel of kernels.def: agk_<kernel>_fn. A comment line begins each group of kernels. */
#ifndef AGK_KERNEL_TYPES_H
#define AGK_KERNEL_TYPES_H

#include "kernels.h"
#include "mul_mat_types.h"

/* mul_mat and types. Conversions take n elements; kernels/mul_mat.h describes the packed operands and the block of
 * work. */
struct agk_mm_block;
#define CONVERSION_VARIANTS(function, kernel) typedef function kernel##_fn;
#define CONVERSION_ONE(function, kernel)
#define CONVERSION_COPY(function, kernel)
#define CONVERSION_NO(function, kernel)
#define AGK_TYPE(NAME, id, symbol, name, numpy, block, bytes, alignment, group, dot, reads, writes, ...) \
    CONVERSION_##reads(agk_to_float_fn, agk_##symbol##_to_f32) \
        CONVERSION_##writes(agk_from_float_fn, agk_f32_to_##symbol)
#include "types.def"
#undef CONVERSION_VARIANTS
#undef CONVERSION_ONE
#undef CONVERSION_COPY
#undef CONVERSION_NO

typedef void agk_mm_blocks_pack_f32_fn(int64_t k, int64_t cols, const void *b, size_t ldb, void *out);
typedef void agk_mm_blocks_pack_bf16_fn(int64_t k, int64_t cols, const void *b, size_t ldb, void *out);
typedef void agk_mm_blocks_pack_q8_fn(int64_t k, int64_t cols, const void *b, size_t ldb, void *out);
typedef void agk_mm_columns_q8_fn(const void *src, void *dst, int64_t n);
typedef void agk_mm_blocks_rows_q8_0_fn(const void *src, void *dst, int64_t n);
typedef void agk_mm_blocks_rows_q4_0_fn(const void *src, void *dst, int64_t n);
typedef void agk_mm_blocks_f32_fn(const struct agk_mm_block *block);
typedef void agk_mm_blocks_bf16_fn(const struct agk_mm_block *block);
typedef void agk_mm_blocks_q8_fn(const struct agk_mm_block *block);

/* Products of rows of each type with columns, and of rows that are packed side by side. */
typedef void agk_mm_product_fn(const struct agk_mm_block *block);
typedef agk_mm_product_fn agk_mm_dots_bf16_bf16_fn, agk_mm_packed_pairs_fn, agk_mm_packed_floats_fn;
#define AGK_TYPE(NAME, id, symbol, ...) typedef agk_mm_product_fn agk_mm_dots_##symbol##_fn;
#define AGK_PACKED(NAME, symbol, ...) \
    typedef agk_mm_product_fn agk_mm_packed_##symbol##_fn, agk_mm_packed_tiles_##symbol##_fn;
#include "types.def"

/* Packs up to 16 rows of k elements, `stride` bytes apart (mul_mat_packed.h). All variants give the same bytes. */
typedef void agk_mm_packed_group_fn(int type, const char *rows, size_t stride, int64_t n, int64_t k, char *out);

/* n columns of f32, `stride` bytes apart, quantized as by mm_columns_q8 and laid out as by agk_packed_tiles. */
struct agk_packed_layout;
typedef void agk_mm_packed_columns_fn(const struct agk_packed_layout *layout, int64_t n, int64_t width, int64_t k,
                                      const char *columns, size_t stride, char *out);

/* mul_mat_panels.h describes the layouts. The functions for columns and rows return false if a number cannot be
 * split into terms. bf16: packs a row of bf16, or of a quantized type, as one term. */
struct agk_mm_panel;
typedef bool agk_mm_pairs_columns_fn(int terms, int64_t k, int64_t cols, const void *b, size_t ldb, void *out);
typedef agk_mm_pairs_columns_fn agk_mm_tiles_columns_fn; /* lower/mul_mat/tiles.h */
typedef void agk_mm_tiles_rows_bf16_fn(int64_t k, int64_t rows, const void *a, size_t lda, void *out); /* of bf16 */
typedef void agk_mm_tiles_rows_iq_fn(int type, const void *src, void *out, int64_t n); /* of codebook types */
typedef bool agk_mm_pairs_rows_fn(int terms, int64_t k, const float *x, void *out);
typedef void agk_mm_pairs_rows_bf16_fn(const void *src, void *out, int64_t k);
typedef void agk_mm_pairs_product_fn(const struct agk_mm_panel *p);
typedef agk_mm_pairs_product_fn agk_mm_floats_product_fn, agk_mm_tiles_product_fn;
typedef agk_mm_pairs_product_fn agk_mm_bytes_product_fn; /* mul_mat_bytes.h */
/* `words`: rows of shorts are stored as 16 bits each. Rows of bytes have one form only. */
typedef void agk_mm_bytes_rows_fn(int type, bool words, const void *src, void *out, int64_t n);
typedef agk_mm_bytes_rows_fn agk_mm_bytes_scaled_rows_fn; /* of types of agk_bytes_one_scale */
typedef void agk_mm_columns_q8_wide_fn(const void *src, void *dst, int64_t n);
/* mm_bytes_columns: of columns as agk_mm_col_q8; mm_bytes_floats: of columns of f32, quantized in the same way. */
typedef void agk_mm_bytes_columns_fn(bool halves, bool wide, int64_t k, int64_t cols, const void *b, size_t ldb,
                                     void *out);
typedef agk_mm_bytes_columns_fn agk_mm_bytes_floats_fn;
typedef agk_mm_pairs_product_fn agk_mm_shorts_product_fn; /* mul_mat_shorts.h */
typedef agk_mm_bytes_rows_fn agk_mm_shorts_rows_fn;
typedef agk_mm_bytes_columns_fn agk_mm_shorts_columns_fn;
/* The epilogue of the sums of `rows` x `cols` in lanes. Packed columns: of a single panel of 32 rows. */
struct agk_mm_end;
typedef void agk_mm_panels_end_fn(const struct agk_mm_end *end, const float *sums, size_t panel_sums, int64_t rows,
                                  int64_t cols);
typedef void agk_mm_panels_put_fn(const float *sums, size_t panel_sums, int64_t rows, int64_t cols, float *c,
                                  size_t ldc);

/* unary, glu. op is an agk_op; y may be x. For glu, op is the function f of f(x) * g. */
typedef void agk_unary_f32_fn(int op, int64_t n, float *y, const float *x);
typedef void agk_unary_f16_fn(int op, int64_t n, void *y, const void *x); /* of the type, each result rounded once */
typedef agk_unary_f16_fn agk_unary_bf16_fn;                               /* of short functions */
typedef void agk_glu_f32_fn(int op, int64_t n, float *y, const float *x, const float *g);
typedef agk_glu_f32_fn agk_glu_past_f32_fn; /* the result is written past the caches, so it is not an operand */
typedef void agk_glu_limited_f32_fn(int64_t n, float *y, const float *x, const float *g, float alpha, float limit,
                                    float offset);
typedef void agk_unary_params_f32_fn(int op, int64_t n, float *y, const float *x, const float *params);
typedef void agk_backward_silu_f32_fn(int64_t n, float *y, const float *g, const float *x);

/* binary. Rows of n floats; strides are in bytes. one_b: b has a single element for each row. y may be a or b. */
typedef struct agk_binary_rows {
    char *y;
    const char *a, *b;
    int64_t step_y, step_a, step_b;
    bool one_b;
} agk_binary_rows;
typedef void agk_binary_f32_fn(int op, int64_t n, int64_t rows, const agk_binary_rows *r);
/* of rows without gaps; the result is written past the caches, so it is not an operand */
typedef void agk_binary_past_f32_fn(int op, int64_t n, float *y, const float *a, const float *b);
typedef agk_binary_f32_fn agk_binary_f16_fn,
    agk_binary_bf16_fn; /* rows of the type, each result rounded once; there is no one_b */
typedef void agk_binary_scale_f32_fn(int64_t n, float *y, const float *x, float scale, float bias);

/* norm, soft_max. One row; y may be x. */
typedef void agk_norm_f32_fn(int64_t n, float *y, const float *x, float eps);
typedef void agk_norm_rms_f32_fn(int64_t n, float *y, const float *x, float eps);
typedef void agk_norm_l2_f32_fn(int64_t n, float *y, const float *x, float eps);
typedef double agk_norm_sum_f32_fn(bool squares, int64_t n, const float *x, float shift); /* of x, or (x - shift)^2 */
typedef void agk_norm_scale_f32_fn(int64_t n, float *y, const float *x, float shift,
                                   float scale); /* (x - shift) scale */
typedef struct agk_soft_max_row {
    float scale, slope; /* logit = scale * x + slope * mask */
    float sink;         /* a further logit that takes its share of the sum; -inf: none */
    const void *mask;   /* f16 or f32, or NULL */
    bool mask_f16;
} agk_soft_max_row;
typedef void agk_soft_max_f32_fn(int64_t n, float *y, const float *x, const agk_soft_max_row *row);

/* backward, reduce. One row. entropy: the sum of label * log(soft_max(logit)). */
typedef void agk_backward_rms_norm_f32_fn(int64_t n, float *out, const float *grad, const float *x, float eps);
typedef void agk_backward_soft_max_f32_fn(int64_t n, float *out, const float *grad, const float *y, float scale);
typedef double agk_cross_entropy_loss_f32_fn(int64_t n, const float *logit, const float *label);
typedef void agk_backward_entropy_f32_fn(int64_t n, float *out, const float *logit, const float *label, double times);

/* optimizers. One row, in place: w = w keep - alpha g. adamw: keep is 1 - alpha wd, of_m is 1 / (1 - beta1^t), of_v
 * the same of beta2. */
typedef void agk_optimizers_sgd_f32_fn(int64_t n, float *w, const float *g, float alpha, float keep);
typedef struct agk_adamw {
    float *w, *m, *v;
    const float *g;
    float alpha, beta1, beta2, eps, keep, of_m, of_v;
} agk_adamw;
typedef void agk_optimizers_adamw_f32_fn(int64_t n, const agk_adamw *step);

/* recurrent. One token of one head, `rows` rows of n floats: the state is read from `before`, which may be `state`, and
 * written to `state`. A kernel reads only the fields that its formula names.
 * outer (gla): row_i = decay_i row_i + k_i v, y = the sum of r_i scale row_i
 * outer:       y = the sum of r_i (row_i + first_i k_i v) with the rows before, then the same
 * wkv7:        row_i = decay row_i + v_i k + (a . row_i) b, y_i = r . row_i
 * delta:       row_i = decay row_i; row_i += (v_i - k . row_i) beta k, y_i = r . row_i scale
 * scan:        row_i = decay row_i + v_i scale k, y_i = r . row_i
 * decay is a row, or one number for all if one_decay is set. decays: y = e^(scale x). */
typedef struct agk_token {
    int64_t n, rows;
    float *state, *y;
    const float *before, *k, *v, *r, *decay, *first, *a, *b;
    float scale, beta;
    bool one_decay;
} agk_token;
typedef void agk_recurrent_outer_fn(bool gla, const agk_token *t);
typedef void agk_recurrent_wkv7_fn(const agk_token *t);
typedef agk_recurrent_wkv7_fn agk_recurrent_delta_fn, agk_recurrent_scan_fn;
typedef void agk_recurrent_decays_fn(int64_t n, float *y, const float *x, float scale);

/* rope. The table has n cosines and sines of position * freq, times magnitude; a rotation turns `half` pairs. */
typedef void agk_rope_table_fn(int64_t n, double position, const double *freq, float magnitude, float *cosine,
                               float *sine);
typedef void agk_rope_rotate_fn(bool neox, int64_t half, float *y, const float *x, const float *cosine,
                                const float *sine);

/* flash_attn_ext. kernels/flash.h describes a tile. k [n][d] and v [n][dv] are keys first .. first+n-1. They are
 * floats, except for the narrow kernels, which read rows in the type of the tensor. Codes: a narrow kernel for k in
 * q8_0 or q4_0. Pairs: k is bf16; v is stored in pairs of keys [pairs][dv][2], an even key of the head with the next
 * one, starting with the pair that holds key `first`. agk_flash_pairs makes these pairs from n rows of bf16; if n is
 * odd, it pairs the last row with zeros. */
struct agk_flash_tile;
typedef void agk_flash_begin_fn(const struct agk_flash_tile *t);
typedef void agk_flash_block_fn(const struct agk_flash_tile *t, int64_t first, int64_t n, const void *k, const void *v);
typedef void agk_flash_end_fn(const struct agk_flash_tile *t);
typedef agk_flash_begin_fn agk_flash_narrow_begin_fn, agk_flash_pairs_begin_fn, agk_flash_codes_begin_fn;
typedef agk_flash_block_fn agk_flash_narrow_block_fn, agk_flash_pairs_block_fn, agk_flash_codes_block_fn;
typedef agk_flash_end_fn agk_flash_narrow_end_fn;
/* A block of keys for heads whose tiles follow one another in memory. Returns how many of the keys it computed, from
 * the first one on; 0: not these types, widths or rows. */
struct agk_flash_rows;
typedef int64_t agk_flash_heads_fn(const struct agk_flash_tile *tiles, int64_t heads, const struct agk_flash_rows *x);
typedef void agk_flash_pairs_pack_fn(int64_t n, int64_t dv, const char *rows, int64_t step, void *out);

/* Attention in bf16 terms. The first function packs n (1..32) rows of keys and of values, d and dv floats wide, to
 * panels (for values: to the first panel; the next ones follow v_step bytes apart). The second one computes a tile
 * of rows. False: some number has no terms, and nothing was stored to the result. */
struct agk_flash_terms;
typedef bool agk_flash_terms_pack_fn(int terms, int64_t n, int64_t d, const float *k, int64_t dv, const float *v,
                                     void *k_out, void *v_out, size_t v_step);
typedef bool agk_flash_terms_tile_fn(const struct agk_flash_tile *t, const struct agk_flash_terms *x);
/* Attention with one term. The first function packs rows of keys and values as they lie in memory, floats or bf16.
 * The second one begins a tile of rows (NULL: none) and ends the tile before it. False: the tile that was ended has
 * to be computed in lanes. first: there is no tile before this one. */
typedef bool agk_flash_bf16_pack_fn(bool floats, int64_t n, int64_t d, const void *k, int64_t k_step, int64_t dv,
                                    const void *v, int64_t v_step, void *k_out, void *v_out, size_t v_out_step);
typedef bool agk_flash_bf16_tile_fn(const struct agk_flash_tile *t, const struct agk_flash_terms *x, bool first,
                                    void *state);

/* cpy, shape. y[j][i] = x[i][j], i < n0, j < n1; strides in bytes, the last index contiguous. */
typedef void agk_cpy_transpose_32_fn(int64_t n0, int64_t n1, char *y, int64_t y_step, const char *x, int64_t x_step);
typedef void agk_cpy_transpose_16_fn(int64_t n0, int64_t n1, char *y, int64_t y_step, const char *x, int64_t x_step);
typedef void agk_cpy_fill_32_fn(int64_t n, void *y, uint32_t bits);
typedef void agk_cpy_row_fn(int64_t bytes, void *y, const void *x); /* y may be x */
typedef agk_from_float_fn agk_cpy_to_i32_fn;                        /* agk_i32_from_float */
typedef agk_to_float_fn agk_cpy_from_i32_fn;

/* sort: the indices of the k <= 16 largest of n >= 32 contiguous elements, in order: equal values by their indices, NaN
 * last. False: too many elements are as large as the k-th, or too few are numbers. */
typedef bool agk_sort_top_k_fn(int64_t n, int64_t k, const void *x, int32_t *out);

/* peak: `turns` blocks of one instruction; kernels/peak.h says how many operations a block has. read: loads every
 * line of `size` bytes once; size is a multiple of 512, the address a multiple of 64. */
typedef void agk_peak_read_fn(int64_t size, const char *data);
typedef double agk_peak_f32_fn(int64_t turns);
typedef agk_peak_f32_fn agk_peak_bf16_fn, agk_peak_int8_fn;

#define AGK_VARIANT(kernel, isa, needs) agk_##kernel##_fn agk_##kernel##_##isa;
#ifdef __clang__
#pragma clang diagnostic ignored "-Wredundant-decls"
#endif
#include "kernels.def"
#undef AGK_VARIANT

#endif
