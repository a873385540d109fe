/* tiles: products with many columns on matrix tiles (AMX), which multiply bf16. An f32 is three bf16 terms, an f16 two,
 * bf16 and quantized rows one (kernels/mul_mat_panels.h).
 *
 * Only tiles do three things. Numbers that cannot be split into terms (not finite, or below 2^-110 among no larger
 * ones) are found while packing, and their products are computed once more by a dot. Panels of weights are kept
 * packed if they are f32, f16 or bf16. Stages that are a bias, a function and an addend are carried out while the
 * sums are in L1, and the result may become bf16 or be written as the columns of the next product. Here: which
 * kernels are used, how rows become panels, which stages are carried out. Not here: the second step (tiles_items.c). */
#include "tiles.h"

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

/* -- stages --------------------------------------------------------------------------------------------------- */

/* The operand of a sum, if a tile can read it: rows of floats. */
static const agk_view *addend(const agk_node *node, int i)
{
    if (i >= node->n_stages || node->stage[i].op != AGK_OP_add || node->stage[i].operand < 0) return NULL;
    const agk_view *v = agk_has(node, node->stage[i].operand) ? &node->src[node->stage[i].operand] : NULL;
    return v != NULL && v->type == AGK_F32 && v->nb[0] == 4 ? v : NULL;
}

/* Whether a tile can carry out all stages: a bias, a function, then another addend or the conversion to bf16, in
 * this order; each of them may be missing. False: there are other stages. */
static bool choose_end(agk_mm_panels_plan *p, const agk_node *node)
{
    int8_t i = 0;
    p->bias = p->act = p->other = -1;
    const agk_view *bias = addend(node, i);
    if (bias != NULL && bias->ne[0] == node->dst.ne[0] && agk_nrows(bias) == 1) p->bias = i++;
    if (i < node->n_stages && agk_mm_end_takes(node->stage[i].op)) p->act = i++;
    const agk_view *other = addend(node, i);
    if (other != NULL && agk_same_shape(other, &node->dst)) p->other = i++;
    if (p->other < 0 && agk_mm_narrows(node)) ++i;
    return i == node->n_stages;
}

/* Whether columns of one term fit into the place where their floats would be. Then the node that computes them can
 * write the packed columns straight away. */
static bool fit_their_floats(const agk_view *b)
{
    const int64_t k = b->ne[0], n = b->ne[1];
    const bool dense = b->type == AGK_F32 && b->nb[0] == 4 && b->nb[1] == 4 * k && b->ne[2] == 1 && b->ne[3] == 1;
    return dense && (size_t)agk_mm_panels_units(b) * agk_terms_unit_bytes(1, k) <= (size_t)(4 * k * n);
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
    p.ends = choose_end(&p, node);
    node->gives_columns = node->for_columns && p.ends && terms == 1;
    node->has_columns = lowering->source != NULL && terms == 1 && fit_their_floats(b);
    const agk_packed_layout *layout = agk_packed_layout_of(a->type);
    if (layout != NULL && layout->sums == AGK_NO_SUMS) p.packed = agk_packed_keep(lowering);
    agk_mm_panels_lower(lowering, &p, terms * (terms + 1) / 2, agk_mm_panels_on_tiles);
    return true;
}

bool agk_mm_tiles_narrow(agk_lowering *lowering)
{
    const agk_mm_problem problem = agk_mm_problem_of(lowering);
    if (problem.n < AGK_PANEL_MIN_COLUMNS || !serves(&problem)) return false;
    lower(lowering);
    const agk_mm_panels_plan p = agk_mm_panels_plan_of(lowering->node);
    lowering->fused = p.ends && p.terms == 1;
    return lowering->fused;
}

const agk_mm_scheme agk_mm_tiles = {"tiles", serves, lower};
