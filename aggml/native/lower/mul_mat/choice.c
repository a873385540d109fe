/* Which scheme computes a product: a table of preferences, read from top to bottom, the best first.
 *
 * The first row is taken whose scheme serves the product and whose condition holds. A scheme serves a product if
 * kernels.def has lines for it that this machine can run. The conditions here only say when the scheme pays off. The
 * column `why` has the figures. Not here: what the schemes do (README.md). */
#include "scheme.h"

#include "kernels/mul_mat_bytes.h"
#include "kernels/mul_mat_packed.h"
#include "kernels/mul_mat_panels.h"

enum {
    PACKED_IN_LANES = 16,  /* columns, where nothing below says otherwise */
    PACKED_ON_TILES = 31,  /* from 32 columns on, a panel pays off */
    BYTES_FROM = 9,        /* columns, where the schemes below would convert quantized rows to floats */
    FLOATS_AVX2 = 192,     /* columns of floats from which panels pay off on vectors of 256 bits */
    DOTS = 16,             /* columns */
    DOTS_OF_BF16 = 4,      /* columns; from 5 on, a packed copy of bf16 weights pays off for products of pairs, */
    DOTS_OF_BF16_AVX2 = 2, /* and from 3 on where bf16 are widened to floats */
    DOTS_QUANTIZED = 8,
    DOTS_BESIDE_TILES = 4, /* columns of bf16 up to which dots are used where matrix tiles do the rest */
    DOTS_BESIDE_FAST_BLOCKS = 12,
    FAST_BLOCKS_OF_F16 = 48,
    FAST_BLOCKS = 128, /* columns of f32 up to which blocks are used on a Zen 4 */
    DOT_K = 64,        /* with shorter rows, adding up the lanes of a dot costs more than it saves */
};

static bool few_enough_for_packed_tiles(const agk_mm_problem *p)
{
    const agk_packed_layout *layout = agk_packed_layout_of(p->a);
    const int64_t least = layout != NULL && agk_packed_halves(layout) ? AGK_PACKED_COLUMNS + 1 : AGK_PACKED_COLUMNS - 1;
    return p->n >= least && p->n <= PACKED_ON_TILES;
}

/* Whether panels gain much by what they alone can do: by an epilogue if rows are short, by columns that the product
 * before has packed, by results of bf16. MiniLM (k 384) in q8_0, 512 tokens at a time, sentences a second: panels 744,
 * packed 657. Prompts of 512 tokens with k 896 and 4864, tokens a second: q8_0 769 and 800, q4_0 747 and 770. */
static bool gains_by_ends(const agk_mm_problem *p)
{
    enum { SHORT = 512 };
    return p->panels || (p->ends && p->k < SHORT);
}

/* The most columns of packed weights in lanes on a Zen 4, whose kernels of packed weights are nearer to the peak than
 * its panels. The best of 9 to 15, G products a second of two virtual cores (peak 925), panels and packed, 4096 x 4096:
 *
 *           64 columns  96          128         160         256
 *   q8_0     569  698    594  688    615  693    630  689   649  692
 *   q4_K     579  623    607  616    621  617    630  617   650  607
 *   q5_K     560  602    598  603    622  598    630  600
 *   q6_K     538  587    578  585    600  587    613  594
 *   iq4_xs   630  691    662  678    681  676    693  675
 *   q3_K     618  595    654  598    690  597
 *   q2_K     567  579    582  575    635  572
 *
 * Blocks of 32 stay faster: prompts of 512 tokens of a 514M llama, tokens a second: q8_0 708 and 735, q4_0 707 and 731,
 * q4_1 656 and 676, q5_0 704 and 710, q5_1 643 and 636, iq4_nl 658 and 712, mxfp4 705 and 769, nvfp4 576 and 626. */
static int64_t most_packed_on_amd512(const agk_mm_problem *p, const agk_packed_layout *layout)
{
    /* Every group of rows reads all packed columns. 512 of k 8192 are 7 MB: panels and packed 616 and 641 (q8_0), 620
     * and 647 (q4_0); of k 14336 12 MB: 610 and 497, 589 and 578; 256 of these: 537 and 603, 561 and 631. */
    const int64_t most = ((int64_t)8192 * 512) / (p->k > 0 ? p->k : 1);
    if (layout->k == AGK_MM_BLOCK) return gains_by_ends(p) || most < 160 ? 160 : most;
    const bool ternary = p->a == AGK_TQ1_0 || p->a == AGK_TQ2_0;
    return agk_bytes_one_scale(p->a) && !ternary ? 48 : 96; /* one scale: fast panels */
}

/* The most columns of packed weights in lanes. A panel of rows is made anew in each run, which more columns have to
 * pay for. G products a second, 1536 x 1536, two virtual cores of a Zen 5, panels (or blocks) and packed:
 *
 *                       24 columns  32          48          64          96
 *   q8_0                375  1106   688  1144   874  1153   947  1202   1038 1221
 *   q4_K                549  1073   746  1130   896  1169   959  1175   1067 1171
 *   q6_K                551   826   757   858   906   873   976   886
 *   bf16                537   711   556   746   655   785   723   784    765  803
 *   bf16, 4096 x 4096   546   609   624   688   700   709   759   740    806  759
 *   q4_K, with AVX2     329   475   393   488   452   493   492   497    526  508
 *   q6_K, with AVX2     293   341   343   349   408   359
 *
 * Other types, and AVX-512 on Intel's processors, cross at nearly the same numbers. NEON was not measured. */
static int64_t most_packed_in_lanes(const agk_mm_problem *p)
{
    const uint32_t wide = AGK_AVX512 | AGK_AVX512_VNNI;
    if ((p->cpu & AGK_AVX2) == 0 || agk_mm_tiles.serves(p)) return PACKED_IN_LANES;
    if (p->a == AGK_BF16) return 48;
    const agk_packed_layout *layout = agk_packed_layout_of(p->a);
    if (layout == NULL) return 0;
    if ((p->cpu & AGK_ZMM_HALVES) != 0) return most_packed_on_amd512(p, layout);
    const bool halves = agk_packed_halves(layout), is_wide = (p->cpu & wide) == wide;
    return halves ? (is_wide ? 40 : 32) : (is_wide ? 80 : 48);
}

static bool few_enough_for_packed_lanes(const agk_mm_problem *p)
{
    return p->n <= most_packed_in_lanes(p);
}

static bool worth_packed_pairs(const agk_mm_problem *p)
{
    const int64_t dots = agk_pick_vector("mm_packed_pairs", p->cpu) != NULL ? DOTS_OF_BF16 : DOTS_OF_BF16_AVX2;
    return p->n > dots && p->n <= most_packed_in_lanes(p);
}

static bool worth_panels(const agk_mm_problem *p)
{
    return p->n >= AGK_PANEL_MIN_COLUMNS;
}

/* Whether the rows below would convert quantized rows to floats: they do, unless blocks_q8 serves the type. */
static bool worth_bytes(const agk_mm_problem *p)
{
    return p->n >= (agk_mm_blocks_q8.serves(p) ? AGK_PANEL_MIN_COLUMNS : BYTES_FROM);
}

/* On vectors of 256 bits blocks multiply as fast as panels, until their packed columns, 512 k at a time, fill an L2 of
 * 512 KB. On a Granite Rapids panels take 1.15 of the time of blocks at 32 columns, 1.0 at 160, 0.98 at 256. */
static bool worth_floats(const agk_mm_problem *p)
{
    const bool narrow = (p->cpu & (AGK_AVX512 | AGK_NEON)) == 0;
    if (agk_mm_fast_blocks(p->a, p->cpu)) return p->n > (p->a == AGK_F32 ? FAST_BLOCKS : FAST_BLOCKS_OF_F16);
    return p->n >= (narrow ? (int)FLOATS_AVX2 : (int)AGK_PANEL_MIN_COLUMNS);
}

/* Shorts of 256 bits are better than floats of as many, not than those of 512. */
static bool worth_shorts(const agk_mm_problem *p)
{
    return p->n >= BYTES_FROM && (p->cpu & AGK_AVX512) == 0;
}

static bool few_columns(const agk_mm_problem *p)
{
    const bool beside_tiles = p->a == AGK_BF16 && agk_mm_tiles.serves(p);
    const int64_t floats = p->a == AGK_F32 && agk_mm_fast_blocks(p->a, p->cpu) ? DOTS_BESIDE_FAST_BLOCKS
                           : beside_tiles                                      ? DOTS_BESIDE_TILES
                                                                               : DOTS;
    const int64_t few = agk_traits(p->a)->blck_size > 1 ? DOTS_QUANTIZED : floats;
    return p->n <= 2 || (p->n <= few && p->k >= DOT_K);
}

static bool always(const agk_mm_problem *p)
{
    (void)p;
    return true;
}

static const agk_mm_preference preferences[] = {
    {&agk_mm_packed_tiles, few_enough_for_packed_tiles,
     "8 columns on tiles take 0.67 (q4_0), 0.77 (q4_K), 0.81 (q8_0) of the time of lanes; types with a scale for 16 k "
     "are slower there up to 8 columns. Tiles multiply 8 or 16 columns alike, so 7 are worth a tile of 8"},
    {&agk_mm_packed_lanes, few_enough_for_packed_lanes,
     "against dots, one column on a Sapphire Rapids, two threads: 97 instead of 75 % of the read bandwidth (q4_0), 90 "
     "instead of 65 % (q4_K), 91 instead of 75 % (q6_K); eight columns: 2 (q8_0) to 3 (q4_K) times the products"},
    {&agk_mm_packed_pairs, worth_packed_pairs,
     "against dots on a Zen 4, eight columns, two threads: 90 instead of 69 % of the read bandwidth; up to four "
     "columns dots are as fast, and need no copy. With AVX2, 2 to 8 columns in cache: 79 to 85 instead of 53 to 69 "
     "GFLOP/s of a thread's 91; two columns from memory are as fast, and need no copy"},
    {&agk_mm_tiles, worth_panels,
     "16 times the products of f32 lanes; f32 as three bf16 terms is 2.6 times faster than lanes"},
    {&agk_mm_bytes, worth_bytes,
     "four products of bytes in each lane where f32 has one; below 32 columns making a panel costs more than it saves, "
     "unless rows would become floats otherwise"},
    {&agk_mm_pairs, worth_panels,
     "vdpbf16ps has twice the products of an f32 FMA on AMD's processors, half of them on Intel's"},
    {&agk_mm_shorts, worth_shorts,
     "32 products of codes of 4 bits take 2.1 instructions, those of f32 4 of a kind that only two of three pipes "
     "have"},
    {&agk_mm_floats, worth_floats,
     "rows are unpacked once for 512 columns, and both operands are read in the order in which they lie"},
    {&agk_mm_dots_q8, few_columns, "weights are read once, as they lie; many columns would not fit the registers"},
    {&agk_mm_dots_bf16, few_columns, "two products a lane, no conversion of rows"},
    {&agk_mm_dots_f32, few_columns,
     "rows are read once, as they lie; from 17 columns on packing b costs less than adding up lanes"},
    {&agk_mm_blocks_bf16, always, "two products a lane, or matrix tiles, for fewer columns than a panel is worth"},
    {&agk_mm_blocks_q8, always, "four products a lane for 9 to 31 columns"},
    {&agk_mm_blocks_f32, always, "serves everything: rows that are not f32 are widened, 32 at a time"},
};

const agk_mm_preference *agk_mm_prefer(const agk_mm_problem *problem, const agk_mm_preference *after)
{
    const agk_mm_preference *row = after == NULL ? preferences : after + 1;
    while (!(row->when(problem) && (row->scheme->exact || !problem->exact) && row->scheme->serves(problem)))
        ++row; /* the last row always serves */
    return row;
}
