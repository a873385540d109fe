/* The table of element types, made from types.def, and the conversions of rows that a type has. Not here: the
 * conversions themselves (the other files, kernels/<isa>/to_f32.c and f32_to.c). */
#include "quant.h"
#include "table/kernel_types.h"

static void f32_to_float(const void *src, float *dst, int64_t n)
{
    if (n > 0) memcpy(dst, src, (size_t)n * sizeof *dst);
}

static void f32_from_float(const float *src, void *dst, int64_t n)
{
    if (n > 0) memcpy(dst, src, (size_t)n * sizeof *src);
}

/* The columns reads, writes and fits: for each value, the function that any processor can run, and the kernel of
 * kernels.def that has more variants. */
#define READ_VARIANTS(symbol) .to_float = agk_##symbol##_to_f32_scalar, .reader = #symbol "_to_f32"
#define READ_ONE(symbol) .to_float = agk_##symbol##_to_f32
#define READ_COPY(symbol) .to_float = f32_to_float
#define READ_NO(symbol) .to_float = NULL
#define WRITE_VARIANTS(symbol) .from_float = agk_f32_to_##symbol##_scalar, .writer = "f32_to_" #symbol
#define WRITE_ONE(symbol) .from_float = agk_f32_to_##symbol
#define WRITE_COPY(symbol) .from_float = f32_from_float
#define WRITE_NO(symbol) .from_float = NULL
#define FIT_FIT(symbol) .quantize = agk_quantize_##symbol
#define FIT_IMATRIX(symbol) .quantize = agk_quantize_##symbol, .needs_imatrix = true
#define FIT_NO(symbol) .quantize = NULL

static const agk_type_traits rows[AGK_TYPE_COUNT] = {
#define AGK_TYPE(NAME, id, symbol, ggml, np, block, bytes, align, in_group, dot, reads, writes, fits, ns, elements, \
                 least) \
    [id] = {.name = #ggml, \
            .key = #NAME, \
            .group = #in_group, \
            .numpy = #np, \
            .blck_size = block, \
            .type_size = bytes, \
            .alignment = align, \
            .vec_dot_type = AGK_##dot, \
            .write_ns = ns, \
            .scale = elements, \
            .minimum = least, \
            READ_##reads(symbol), \
            WRITE_##writes(symbol), \
            FIT_##fits(symbol)},
#include "table/types.def"
};

static const agk_type_traits unknown = {.blck_size = 1, .vec_dot_type = AGK_NONE};

const agk_type_traits *agk_traits(int type)
{
    return type >= 0 && type < AGK_TYPE_COUNT && rows[type].name != NULL ? &rows[type] : &unknown;
}

agk_to_float_fn *agk_reader(int type, uint32_t cpu)
{
    const agk_type_traits *traits = agk_traits(type);
    return traits->reader != NULL ? (agk_to_float_fn *)agk_pick_any(traits->reader, cpu) : traits->to_float;
}

agk_from_float_fn *agk_writer(int type, uint32_t cpu)
{
    const agk_type_traits *traits = agk_traits(type);
    return traits->writer != NULL ? (agk_from_float_fn *)agk_pick_any(traits->writer, cpu) : traits->from_float;
}
