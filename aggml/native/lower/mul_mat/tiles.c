/* tiles: products with many columns on matrix tiles (AMX), which multiply bf16. An f32 is three bf16 terms, an f16 two,
 * bf16 and quantized rows one (kernels/mul_mat_panels.h).
 *
 * Only tiles do three things. Numbers that cannot be split into terms (not finite, or below 2^-110 among no larger
 * ones) are found while packing, and their products are computed once more by a dot. Panels of weights are kept
 * packed if they are f32, f16 or bf16. Stages that are a bias, a function and an addend are carried out while the
 * sums are in L1, and the result may become bf16 or be written as the columns of the next product. Here: which
 * kernels are used, how rows become panels, which stages are carried out. Not here: the second step (tiles_items.c). */
#include "tiles.h"

#include "ends.h"
#include "packing.h"
#include "lower/refuse.h"

enum { K_BLOCK_SPLIT = 128 }; /* of several terms: an item takes less of L2 than the 1.3 MB that can really be used */

static bool serves(const agk_mm_problem *p)
{
    return agk_mm_panels_serve(p) && agk_pick_vector("mm_tiles_product", p->cpu) != NULL;
}

/* -- columns and rows ----------------------------------------------------------------------------------------- */

static bool columns(const agk_mm_panels_plan *p, int64_t k, int64_t n, const void *b, size_t stride, char *unit)
{
    return ((agk_mm_tiles_columns_fn *)p->kernels[AGK_TILES_COLUMNS])(p->terms, k, n, b, stride, unit);
}

/* A panel is two halves of 16 rows, packed one by one. */
typedef bool half_fn(const agk_mm_panels_plan *p, const agk_view *a, const char *from, int64_t n, int64_t k, char *half,
                     float *room);

static inline bool both_halves(half_fn *make, const agk_mm_panels_plan *p, const agk_view *a, const char *from,
                               int64_t n, int64_t k, char *panel, float *room)
{
    bool fine = true;
    for (int64_t first = 0; first < n; first += AGK_MM_UNIT, panel += agk_mm_panels_unit(p, k)) {
        fine = make(p, a, from + first * a->nb[1], agk_mm_least(AGK_MM_UNIT, n - first), k, panel, room) && fine;
    }
    return fine;
}

static bool half_of_bf16(const agk_mm_panels_plan *p, const agk_view *a, const char *from, int64_t n, int64_t k,
                         char *half, float *room)
{
    (void)room;
    ((agk_mm_tiles_rows_bf16_fn *)p->kernels[AGK_TILES_ROWS])(k, n, from, (size_t)a->nb[1], half);
    return true;
}

static bool half_of_codebook(const agk_mm_panels_plan *p, const agk_view *a, const char *from, int64_t n, int64_t k,
                             char *half, float *room)
{
    const size_t line = 2 * (size_t)k;
    for (int64_t i = 0; i < n; ++i) {
        char *to = (char *)room + (size_t)i * line;
        ((agk_mm_tiles_rows_iq_fn *)p->kernels[AGK_TILES_READ])(a->type, from + i * a->nb[1], to, k);
    }
    ((agk_mm_tiles_rows_bf16_fn *)p->kernels[AGK_TILES_ROWS])(k, n, room, line, half);
    return true;
}

/* Rows of f32 are packed like columns of pairs: two consecutive k of each row side by side. */
static bool half_of_floats(const agk_mm_panels_plan *p, const agk_view *a, const char *from, int64_t n, int64_t k,
                           char *half, float *room)
{
    size_t stride = (size_t)a->nb[1];
    if (p->kernels[AGK_TILES_READ] != NULL) {
        agk_to_float_fn *read = (agk_to_float_fn *)p->kernels[AGK_TILES_READ];
        for (int64_t i = 0; i < n; ++i) read(from + i * a->nb[1], room + i * k, k);
        from = (const char *)room;
        stride = (size_t)k * sizeof(float);
    }
    return ((agk_mm_pairs_columns_fn *)p->kernels[AGK_TILES_ROWS])(p->terms, k, n, from, stride, half);
}

static bool rows_of_bf16(const agk_mm_panels_plan *p, const agk_view *a, const char *from, int64_t n, int64_t k,
                         char *panel, float *room)
{
    return both_halves(half_of_bf16, p, a, from, n, k, panel, room);
}

static bool rows_of_codebook(const agk_mm_panels_plan *p, const agk_view *a, const char *from, int64_t n, int64_t k,
                             char *panel, float *room)
{
    return both_halves(half_of_codebook, p, a, from, n, k, panel, room);
}

static bool rows_of_floats(const agk_mm_panels_plan *p, const agk_view *a, const char *from, int64_t n, int64_t k,
                           char *panel, float *room)
{
    return both_halves(half_of_floats, p, a, from, n, k, panel, room);
}

/* min_rows: packed columns come from L3 once per item, so items of 128 rows are 8 % slower, of 96 rows 15 %.
 * max_rows: the sums of so many rows are 512 KB. */
#define AGK_ON_TILES(rows) {columns, rows, .slice_flops = 2e7, .min_rows = 192, .max_rows = 256, .wants_room = true}
static const agk_mm_panels of_bf16 = AGK_ON_TILES(rows_of_bf16), of_codebook = AGK_ON_TILES(rows_of_codebook),
                           of_floats = AGK_ON_TILES(rows_of_floats);

static bool is_codebook(int type)
{
    return type == AGK_IQ2_XXS || type == AGK_IQ2_XS || type == AGK_IQ2_S || type == AGK_IQ3_XXS || type == AGK_IQ3_S ||
           type == AGK_IQ1_S || type == AGK_IQ1_M;
}

static void choose_kernels(agk_mm_panels_plan *p, int a, uint32_t cpu)
{
    p->product = AGK_PICK(mm_tiles_product, cpu);
    p->kernels[AGK_TILES_COLUMNS] = (agk_any_fn *)AGK_PICK(mm_tiles_columns, cpu);
    p->kernels[AGK_TILES_DOT] =
        a == AGK_F16 ? (agk_any_fn *)AGK_PICK(mm_dots_f16, cpu) : (agk_any_fn *)AGK_PICK(mm_dots_f32, cpu);
    if (a == AGK_BF16 || is_codebook(a)) {
        p->panels = a == AGK_BF16 ? &of_bf16 : &of_codebook;
        p->kernels[AGK_TILES_ROWS] = (agk_any_fn *)AGK_PICK(mm_tiles_rows_bf16, cpu);
        if (a != AGK_BF16) p->kernels[AGK_TILES_READ] = (agk_any_fn *)AGK_PICK(mm_tiles_rows_iq, cpu);
        return;
    }
    p->panels = &of_floats;
    p->kernels[AGK_TILES_ROWS] = (agk_any_fn *)AGK_PICK(mm_pairs_columns, cpu);
    if (a != AGK_F32) p->kernels[AGK_TILES_READ] = (agk_any_fn *)agk_reader(a, cpu);
}

/* -- lowering ------------------------------------------------------------------------------------------------- */

static bool lower(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *b = &node->src[1];
    const int terms = a->type == AGK_F32 ? 3 : a->type == AGK_F16 ? 2 : 1;
    agk_mm_panels_plan p = {.columns = agk_mm_to_floats(b->type, lowering->cpu),
                            .terms = (int8_t)terms,
                            .unit_32 = terms * AGK_TERMS_TILE,
                            .panel_32 = 2 * terms * AGK_TERMS_TILE,
                            .k_block = terms > 1 ? K_BLOCK_SPLIT : AGK_PANELS_K_BLOCK};
    choose_kernels(&p, a->type, lowering->cpu);
    /* A k that is no longer than this is a single block, whose sums enter and leave the tiles once. */
    if (terms == 1 && a->ne[0] <= AGK_PANELS_K_MOST) p.k_block = AGK_PANELS_K_MOST;
    if (terms == 1) p.form = AGK_COLUMNS_TILES;
    agk_mm_ends_choose(&p, node);
    /* The result may share the memory of a second operand, whose elements packed columns would overwrite unread. */
    agk_mm_ends_columns(lowering, &p, terms == 1 && p.other < 0 ? 1 << AGK_COLUMNS_TILES : 0);
    const agk_packed_layout *layout = agk_packed_layout_of(a->type);
    if (layout != NULL && layout->sums == AGK_NO_SUMS) p.packed = agk_packed_keep(lowering);
    agk_mm_panels_lower(lowering, &p, terms * (terms + 1) / 2, agk_mm_panels_on_tiles);
    return true;
}

const agk_mm_scheme agk_mm_tiles = {"tiles", serves, lower, false};
