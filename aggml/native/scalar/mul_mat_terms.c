/* mul_mat of panels and units (mul_mat_terms.h). On matrix tiles f32 is three bf16 terms, f16 two, bf16 and quantized rows one;
 * in lanes f32 and f16 are f32, quantized rows are bytes (mul_mat_bytes.h; mul_mat_short.h without AVX-512, which serves nothing
 * else then), and the rest is one term where vdpbf16ps is fast.
 *
 * Two steps. The first packs the columns of b. An item of the second is a block of rows times up to 512 columns: block of k
 * by block of k, 32 rows at a time are made a panel, which all columns pass by; so what is packed stays in L2 for all rows of the item,
 * and the sums stay with the thread. What cannot be split (not finite, or below 2^-110 among no larger) is found on the way and
 * multiplied once more by a dot. Not here: the kernels (amx/mul_mat_tiles.c), lanes (mul_mat.c). */
#include "../chain.h"
#include "../mul_mat_bytes.h"
#include "../mul_mat_short.h"
#include "../packed.h"
#include "../refuse.h"
#include "../strided.h"
#include "mul_mat_plan.h"

enum {
    K_BLOCK = 256, /* a multiple of every quantized block; a panel of one term is then 16 KB of L1, of two 32 */
    K_MOST = 512,  /* of one term: k that is no longer is one block, whose sums enter and leave the tiles once */
    K_BLOCK_3 =
        128,        /* of three terms: 24 KB, and what an item has in L2 stays below the 1.3 MB that are really there */
    K_MOST_3 = 384, /* the same of three terms: 1.2 MB of columns, without sums; 14 % faster than three blocks */
    COLUMNS =
        512, /* of an item: a block of k is 256 KB of packed columns, for each term; with the sums, 1.2 MB stay in L2 */
    MAX_ROWS = 256,       /* of an item, whose sums are then 512 KB */
    MIN_ROWS = 192,       /* packed columns come from L3 once per item: 128 rows are 8 % slower, 96 15 % */
    LANES_MAX_ROWS = 128, /* in lanes, which need 1 byte a cycle of them; 512 KB of f32 columns and 256 KB of sums */
    LANES_MIN_ROWS = 64,
    BYTES_MIN_COLUMNS = 9, /* of NEON and AVX2, where what dots do not take would be multiplied as floats */
    ITEMS = 16,            /* wanted, as far as MIN_ROWS allows */
    UNIT_BYTES = 1 << 17,  /* of b, in one chunk of packing */
};

static const double slice_flops = 2e7, lanes_slice_flops = 2.5e6, bytes_slice_flops = 7e6; /* some 10 us */

typedef struct plan {
    union {
        agk_mm_terms_cols_fn *cols;
        agk_mm_pack_f32_fn *floats; /* whole numbers */
        agk_mm_bytes_pack_fn *bytes;
    } pack;
    union {
        agk_mm_terms_row_fn *terms;
        agk_mm_terms_cols_fn *turned; /* on tiles */
        agk_mm_bytes_row_fn *bytes;
        agk_mm_short_row_fn *shorts;
    } row;
    agk_mm_terms_tile_fn *tile;
    union {
        agk_mm_terms_put_fn *put;  /* in lanes */
        struct agk_packed *packed; /* on tiles: rows of a as panels; NULL: made for each item */
    };
    agk_mm_block_fn *dot;      /* of what cannot be split */
    agk_to_float_fn *a_floats; /* NULL: f32 */
    union {
        agk_to_float_fn *floats; /* NULL: f32 */
        agk_mm_convert_fn *bytes;
    } col;
    union {
        agk_mm_terms_bf16_fn *bf16; /* a row of a to a panel, at once; NULL: by a_floats */
        agk_mm_tiles_rows_fn *bf16_turned;
    };
    int32_t k_block, row_blocks, groups, per_chunk, units_per_chunk;
    int8_t terms;
    int8_t bias, act, other; /* stages that tiles carry out; -1: none */
    int8_t fours;            /* of shorts */
    bool shorts;             /* bytes as in mul_mat_short.h */
    bool ends;               /* all stages are these */
    bool lanes, whole;       /* not on tiles; numbers are f32, which take the room of two terms */
    agk_bytes_traits bytes;
} plan;

_Static_assert(sizeof(plan) <= sizeof(((agk_node *)0)->aux), "the plan lies in aux");

static plan plan_of(const agk_node *node)
{
    plan p;
    memcpy(&p, &node->aux, sizeof p);
    return p;
}

/* Numbers are several terms, and some cannot be. */
static bool splits(const plan *p)
{
    return p->terms > 1 && !p->whole;
}

/* Of k elements of 16 columns, and of 32 rows. */
static size_t unit_bytes(const plan *p, int64_t k)
{
    if (p->shorts) return (size_t)(k / AGK_MM_BLOCK) * sizeof(agk_short_unit);
    if (p->bytes.served) return (size_t)(k / AGK_MM_BLOCK) * sizeof(agk_bytes_unit);
    return agk_terms_unit_bytes(p->terms, k);
}

static size_t panel_bytes(const plan *p, int64_t k)
{
    if (p->shorts) return (size_t)(AGK_TERMS_ROWS * k / AGK_MM_BLOCK) * agk_short_row_bytes(p->fours == 0);
    if (p->bytes.served) return (size_t)(AGK_TERMS_ROWS * k / 16) * sizeof(agk_bytes_row);
    return agk_terms_panel_bytes(p->terms, k);
}

static int64_t max_rows(const plan *p)
{
    return p->lanes ? LANES_MAX_ROWS : MAX_ROWS;
}

static int64_t units_of(const agk_view *b)
{
    return agk_mm_ceil_div(b->ne[1], AGK_TERMS_COLS);
}

static const char *matrix(const agk_task *task, const agk_view *view, int64_t i2, int64_t i3)
{
    return (const char *)agk_data(task, view) + i2 * view->nb[2] + i3 * view->nb[3];
}

/* Work memory: for each matrix of b, for each block of k, that of all units; then whether each unit could be split. Whole units
 * one after the other would lie a power of two apart for many k: 32 of them in the same sets of L2, which has 16 ways. */
static char *matrix_at(const agk_task *task, const agk_node *node, const plan *p, int64_t batch)
{
    const agk_view *b = &node->src[1];
    return (char *)agk_work(task, node) + (size_t)(batch * units_of(b)) * unit_bytes(p, b->ne[0]);
}

/* kn elements, from k0 on, of unit `unit` of a matrix. */
static char *block_at(const plan *p, char *of_matrix, int64_t units, int64_t unit, int64_t k0, int64_t kn)
{
    return of_matrix + (size_t)units * unit_bytes(p, k0) + (size_t)unit * unit_bytes(p, kn);
}

static bool *split_flags(const agk_task *task, const agk_node *node, const plan *p)
{
    const agk_view *b = &node->src[1];
    return (bool *)(void *)matrix_at(task, node, p, b->ne[2] * b->ne[3]);
}

/* Whether numbers too small to be split are lost in what stands beside them: in each of n columns of k floats the largest
 * is finite and at least 2^-100, so that 2^-126 more or less is 2^-26 of it; or all are zero. Behind a gelu, values below
 * 2^-110 are in every other unit. */
static bool too_small_to_count(int64_t k, int64_t n, const char *b, int64_t ldb)
{
    enum { LANES = 16 };
    for (int64_t j = 0; j < n; ++j, b += ldb) {
        uint32_t most[LANES] = {0}, largest = 0;
        for (int64_t i = 0; i < k; i += LANES) {
            uint32_t bits[LANES] = {0};
            memcpy(bits, b + 4 * i, (size_t)agk_mm_least(LANES, k - i) * 4);
            for (int l = 0; l < LANES; ++l) {
                const uint32_t magnitude = bits[l] & 0x7fffffffu;
                most[l] = (int32_t)magnitude > (int32_t)most[l] ? magnitude : most[l];
            }
        }
        for (int l = 0; l < LANES; ++l) largest = most[l] > largest ? most[l] : largest;
        if (largest >= 0x7f800000u || (largest > 0 && largest < (127u - 100u) << 23)) return false;
    }
    return true;
}

/* n columns of k floats to a unit; false: some cannot be split. */
static bool pack_unit(const plan *p, int64_t k, int64_t n, const void *b, size_t ldb, char *out)
{
    enum { LINE = AGK_TERMS_COLS * sizeof(float) };
    if (p->bytes.served) {
        p->pack.bytes(p->bytes.halves, p->bytes.wide, k, n, b, ldb, out);
        return true;
    }
    if (!p->whole) return p->pack.cols(p->terms, k, n, b, ldb, out);
    p->pack.floats(k, n, b, ldb, out);
    memset(out + k * LINE, 0, agk_terms_unit_bytes(p->terms, k) - (size_t)(k * LINE));
    return true;
}

static agk_status pack(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const plan p = plan_of(node);
    const agk_view *b = &node->src[1];
    const int64_t k = b->ne[0], units = units_of(b), all = units * b->ne[2] * b->ne[3];
    bool *fine = split_flags(task, node, &p);
    for (int64_t i = chunk * p.units_per_chunk; i < agk_mm_least(all, (chunk + 1) * p.units_per_chunk); ++i) {
        const int64_t first = i % units * AGK_TERMS_COLS, n = agk_mm_least(AGK_TERMS_COLS, b->ne[1] - first);
        const char *from = matrix(task, b, i / units % b->ne[2], i / units / b->ne[2]) + first * b->nb[1];
        char *of_matrix = matrix_at(task, node, &p, i / units);
        fine[i] = true;
        for (int64_t k0 = 0; k0 < k; k0 += p.k_block) {
            const int64_t kn = agk_mm_least(p.k_block, k - k0);
            const void *x = from + (int64_t)agk_row_size(b->type, k0);
            size_t stride = (size_t)b->nb[1];
            if (p.col.floats != NULL) {
                const size_t bytes = agk_mm_col_bytes(p.bytes.served ? AGK_MM_Q8 : AGK_MM_FLOATS, p.k_block);
                for (int64_t j = 0; j < n; ++j) {
                    const void *column = (const char *)x + (size_t)j * stride;
                    void *to = (char *)task->scratch + (size_t)j * bytes;
                    if (p.bytes.served)
                        p.col.bytes(column, to, kn);
                    else
                        p.col.floats(column, to, kn);
                }
                x = task->scratch;
                stride = bytes;
            }
            fine[i] = pack_unit(&p, kn, n, x, stride, block_at(&p, of_matrix, units, i % units, k0, kn)) && fine[i];
        }
        if (!fine[i] && p.col.floats == NULL) fine[i] = too_small_to_count(k, n, from, b->nb[1]);
    }
    return AGK_OK;
}

/* k floats to a row of a panel: [k / 16][32 rows][16], as wide as two terms; zeros beyond k. */
static void lay_row(int64_t k, const float *x, char *panel)
{
    enum { LANES = 16, LINE = LANES * sizeof(float) };
    for (int64_t i = 0; i < agk_terms_steps(k) * AGK_TERMS_K; i += LANES, panel += LINE * AGK_TERMS_ROWS) {
        if (i + LANES <= k) {
            memcpy(panel, x + i, LINE);
            continue;
        }
        memset(panel, 0, LINE);
        if (i < k) memcpy(panel, x + i, (size_t)(k - i) * sizeof(float));
    }
}

/* The same for tiles: two units of 16 rows. `floats` has room for 16 times kn. */
static bool make_turned_panel(const plan *p, const agk_view *a, const char *rows, int64_t n, int64_t kn, char *panel,
                              float *floats)
{
    bool fine = true;
    for (int64_t first = 0; first < n; first += AGK_TERMS_COLS, panel += unit_bytes(p, kn)) {
        const char *from = rows + first * a->nb[1];
        const int64_t some = agk_mm_least(AGK_TERMS_COLS, n - first);
        size_t stride = (size_t)a->nb[1];
        if (p->bf16_turned != NULL) {
            p->bf16_turned(kn, some, from, stride, panel);
            continue;
        }
        if (p->a_floats != NULL) {
            for (int64_t i = 0; i < some; ++i) p->a_floats(from + i * a->nb[1], floats + i * kn, kn);
            from = (const char *)floats;
            stride = (size_t)kn * sizeof(float);
        }
        fine = p->row.turned(p->terms, kn, some, from, stride, panel) && fine;
    }
    return fine;
}

/* Rows of a, kn elements each, as a panel; missing ones are zero. False: some cannot be split. */
static bool make_panel(const plan *p, const agk_view *a, const char *rows, int64_t n, int64_t kn, char *panel)
{
    float floats[K_MOST];
    bool fine = true;
    if (n < AGK_TERMS_ROWS) memset(panel, 0, panel_bytes(p, kn));
    for (int64_t i = 0; i < n && p->bytes.served; ++i, rows += a->nb[1]) {
        char *to = panel + (size_t)i * panel_bytes(p, kn) / AGK_TERMS_ROWS;
        if (p->shorts)
            p->row.shorts(a->type, p->fours == 0, rows, to, kn);
        else
            p->row.bytes(a->type, rows, to, kn);
    }
    if (p->bytes.served) return true;
    for (int64_t i = 0; i < n; ++i, rows += a->nb[1], panel += 2 * AGK_TERMS_K) {
        if (p->bf16 != NULL) {
            p->bf16(rows, panel, kn);
            continue;
        }
        const float *x = (const float *)(const void *)rows;
        if (p->a_floats != NULL) {
            p->a_floats(rows, floats, kn);
            x = floats;
        }
        if (p->whole)
            lay_row(kn, x, panel);
        else
            fine = p->row.terms(p->terms, kn, x, panel) && fine;
    }
    return fine;
}

/* Rows times columns first .. first + n - 1 of one matrix by a dot. */
static void multiply_again(const agk_task *task, const agk_node *node, const plan *p, agk_mm_block *block,
                           const char *b, char *c, int64_t first, int64_t n)
{
    const agk_view *view = &node->src[1];
    for (int64_t j = first; j < first + n; ++j) {
        block->b = b + j * view->nb[1];
        if (p->col.floats != NULL) {
            p->col.floats(block->b, task->scratch, view->ne[0]);
            block->b = task->scratch;
        }
        block->c = (float *)(void *)(c + j * node->dst.nb[1]);
        p->dot(block);
    }
}

typedef struct item {
    int64_t i2, i3, row, rows, col, cols; /* of c */
    char *columns;                        /* the matrix of b, packed */
    const bool *fine;                     /* of these units */
} item;

static item item_at(const agk_task *task, const agk_node *node, const plan *p, int64_t i)
{
    const agk_view *b = &node->src[1], *dst = &node->dst;
    const int64_t block = i % p->row_blocks, group = i / p->row_blocks % p->groups;
    const int64_t batch = i / p->row_blocks / p->groups, units = units_of(b);
    const int64_t pairs = agk_mm_ceil_div(units, 2), panels = agk_mm_ceil_div(dst->ne[0], AGK_TERMS_ROWS);
    item t = {.i2 = batch % b->ne[2], .i3 = batch / b->ne[2]};
    t.row = panels * block / p->row_blocks * AGK_TERMS_ROWS;
    t.rows = agk_mm_least(dst->ne[0], panels * (block + 1) / p->row_blocks * AGK_TERMS_ROWS) - t.row;
    t.col = pairs * group / p->groups * 2 * AGK_TERMS_COLS;
    t.cols = agk_mm_least(b->ne[1], pairs * (group + 1) / p->groups * 2 * AGK_TERMS_COLS) - t.col;
    t.columns = matrix_at(task, node, p, batch);
    t.fine = split_flags(task, node, p) + batch * units + t.col / AGK_TERMS_COLS;
    return t;
}

/* In lanes: the sums to c; what is fused with the product follows while 32 columns of it are at hand. */
static void store(const agk_task *task, const agk_node *node, const plan *p, const item *t, const float *sums,
                  char *out, bool stages)
{
    const agk_view *c = &node->dst;
    const size_t panel_sums = (size_t)agk_mm_ceil_div(t->cols, 2 * AGK_TERMS_COLS) * AGK_TERMS_SUMS;
    for (int64_t j = 0; j < t->cols; j += 2 * AGK_TERMS_COLS, sums += AGK_TERMS_SUMS) {
        const agk_chain_block block = {.i0 = t->row,
                                       .n = t->rows,
                                       .i1 = t->col + j,
                                       .rows = agk_mm_least(2 * AGK_TERMS_COLS, t->cols - j),
                                       .i2 = t->i2,
                                       .i3 = t->i3};
        p->put(sums, panel_sums, t->rows, block.rows, (float *)(void *)(out + block.i1 * c->nb[1]), (size_t)c->nb[1]);
        if (stages) agk_chain_run(task, node, &block, false);
    }
}

/* Where a tile puts rows `row` on of an item, `out` is its first; with stages or without. */
static agk_terms_end end_of(const agk_task *task, const agk_node *node, const plan *p, const item *t, int64_t row,
                            char *out, bool stages)
{
    const agk_view *c = &node->dst;
    agk_terms_end e = {.c = (float *)(void *)(out + 4 * row + t->col * c->nb[1]), .ldc = (size_t)c->nb[1], .act = -1};
    if (!stages) return e;
    if (p->bias >= 0) {
        e.bias = (const float *)agk_data(task, &node->src[node->stage[p->bias].operand]) + t->row + row;
    }
    if (p->act >= 0) e.act = node->stage[p->act].op;
    if (p->other >= 0) {
        const agk_view *v = &node->src[node->stage[p->other].operand];
        e.other = matrix(task, v, t->i2, t->i3) + 4 * (t->row + row) + t->col * v->nb[1];
        e.ld_other = (size_t)v->nb[1];
    }
    return e;
}

/* Block k0 .. k0 + kn - 1 of the panel of rows `row` on of an item, and what to fetch meanwhile; false: some cannot be split. */
static bool take_panel(const agk_task *task, const agk_node *node, const plan *p, const item *t, int64_t row,
                       int64_t k0, int64_t kn, char *panel, agk_terms_panel *x)
{
    const agk_view *a = &node->src[0], *b = &node->src[1];
    const int64_t k = a->ne[0], left = t->rows - row, i2 = t->i2 / (b->ne[2] / a->ne[2]),
                  i3 = t->i3 / (b->ne[3] / a->ne[3]);
    const bool more = k0 + kn < k;
    x->rows = agk_mm_least(AGK_TERMS_ROWS, left);
    x->a = panel;
    if (!p->lanes && p->packed != NULL) {
        const int64_t in_all = agk_mm_ceil_div(a->ne[1], AGK_PACKED_ROWS);
        const int64_t group = (i3 * a->ne[2] + i2) * in_all + (t->row + row) / AGK_PACKED_ROWS;
        const size_t size = unit_bytes(p, k) + AGK_PACKED_HEAD, at = AGK_PACKED_HEAD + unit_bytes(p, k0);
        const bool two = x->rows > AGK_PACKED_ROWS;
        const char *first = agk_packed_ready(p->packed, group);
        const char *second = two ? agk_packed_ready(p->packed, group + 1) : first;
        x->a = first + at;
        x->lda = size;
        x->next_lda = size;
        x->next_bytes = unit_bytes(p, kn);
        if (left > AGK_TERMS_ROWS) {
            x->next_a = x->a + 2 * size;
            x->next_rows = left > AGK_TERMS_ROWS + AGK_PACKED_ROWS ? 2 : 1;
        } else {
            x->next_a = x->a - (size_t)(row / AGK_PACKED_ROWS) * size + unit_bytes(p, kn);
            x->next_rows = !more ? 0 : t->rows > AGK_PACKED_ROWS ? 2 : 1;
        }
        return p->terms == 1 || (*first != 0 && *second != 0);
    }
    const char *rows = matrix(task, a, i2, i3) + t->row * a->nb[1];
    const char *from = rows + row * a->nb[1] + (int64_t)agk_row_size(a->type, k0);
    x->lda = p->lanes ? panel_bytes(p, kn) / AGK_TERMS_ROWS : unit_bytes(p, kn);
    x->next_lda = (size_t)a->nb[1];
    x->next_bytes = agk_row_size(a->type, kn);
    if (left > AGK_TERMS_ROWS) {
        x->next_a = from + AGK_TERMS_ROWS * a->nb[1];
        x->next_rows = agk_mm_least(AGK_TERMS_ROWS, left - AGK_TERMS_ROWS);
    } else {
        x->next_a = rows + (int64_t)agk_row_size(a->type, k0 + kn);
        x->next_rows = more ? agk_mm_least(AGK_TERMS_ROWS, t->rows) : 0;
    }
    if (p->lanes) return make_panel(p, a, from, x->rows, kn, panel);
    float *floats = (float *)(void *)(panel + panel_bytes(p, p->k_block));
    return make_turned_panel(p, a, from, x->rows, kn, panel, floats);
}

static void run_item(const agk_task *task, const agk_node *node, const plan *p, const item *t)
{
    const agk_view *a = &node->src[0], *b = &node->src[1], *c = &node->dst;
    const char *rows =
        matrix(task, a, t->i2 / (b->ne[2] / a->ne[2]), t->i3 / (b->ne[3] / a->ne[3])) + t->row * a->nb[1];
    char *out = (char *)agk_data(task, c) + t->i2 * c->nb[2] + t->i3 * c->nb[3] + t->row * 4;
    const int64_t k = a->ne[0], panels = agk_mm_ceil_div(t->rows, AGK_TERMS_ROWS);
    const size_t panel_sums = (size_t)agk_mm_ceil_div(t->cols, 2 * AGK_TERMS_COLS) * AGK_TERMS_SUMS;
    float *sums = task->scratch;
    char *panel = (char *)(sums + (size_t)(max_rows(p) / AGK_TERMS_ROWS) * (COLUMNS / 32) * AGK_TERMS_SUMS);
    bool fine[MAX_ROWS / AGK_TERMS_ROWS];
    for (int64_t i = 0; i < panels; ++i) fine[i] = true;
    bool fine_columns = true;
    for (int64_t u = 0; u * AGK_TERMS_COLS < t->cols && splits(p); ++u) fine_columns = fine_columns && t->fine[u];
    agk_terms_panel x = {.terms = p->terms,
                         .fours = p->fours,
                         .halves = p->bytes.halves,
                         .minimum = p->bytes.minimum,
                         .wide = p->bytes.wide,
                         .cols = t->cols};
    int64_t k0 = 0;
    do { /* once even if k is 0: the result is zeros */
        const int64_t kn = agk_mm_least(p->k_block, k - k0);
        const bool more = k0 + kn < k;
        x.k = agk_terms_steps(kn) * AGK_TERMS_K;
        x.b = block_at(p, t->columns, units_of(b), t->col / AGK_TERMS_COLS, k0, kn);
        x.ldb = unit_bytes(p, kn);
        x.next_b = (size_t)units_of(b) * x.ldb;
        x.first = k0 == 0;
        x.shares = more && k0 + 2 * kn <= k ? (int)panels : 0;
        for (int64_t i = 0; i < panels; ++i) {
            const int64_t row = i * AGK_TERMS_ROWS;
            fine[i] = take_panel(task, node, p, t, row, k0, kn, panel, &x) && fine[i];
            x.share = (int)i;
            x.sums = sums + (size_t)i * panel_sums;
            agk_terms_end end;
            if (!p->lanes && !more) {
                end = end_of(task, node, p, t, row, out, p->ends && fine[i] && fine_columns);
                x.end = &end;
            }
            p->tile(&x);
            agk_breathe(task);
        }
        k0 += kn;
    } while (k0 < k);
    bool split = fine_columns; /* all that was multiplied */
    for (int64_t i = 0; i < panels && splits(p); ++i) split = split && fine[i];
    const bool fused = node->n_stages > 0;
    if (p->lanes) store(task, node, p, t, sums, out, fused && split);
    if (split && (p->lanes || p->ends)) return;
    for (int64_t i = 0; i < panels; ++i) {
        const int64_t row = i * AGK_TERMS_ROWS;
        if (split || (p->ends && fine[i] && fine_columns)) continue;
        agk_mm_block block = {.k = k, .cols = 1, .lda = (size_t)a->nb[1], .ldb = (size_t)b->nb[1]};
        block.a = rows + row * a->nb[1];
        block.ldc = (size_t)c->nb[1];
        block.rows = agk_mm_least(AGK_TERMS_ROWS, t->rows - row);
        for (int64_t u = 0; u * AGK_TERMS_COLS < t->cols; ++u) {
            if (fine[i] && t->fine[u]) continue;
            const int64_t first = t->col + u * AGK_TERMS_COLS;
            multiply_again(task, node, p, &block, matrix(task, b, t->i2, t->i3), out + 4 * row, first,
                           agk_mm_least(AGK_TERMS_COLS, t->col + t->cols - first));
        }
        if (p->ends && fused) {
            agk_chain_run(task, node, &(agk_chain_block){t->row + row, block.rows, t->col, t->cols, t->i2, t->i3},
                          false);
        }
    }
    if (fused && !p->ends)
        agk_chain_run(task, node, &(agk_chain_block){t->row, t->rows, t->col, t->cols, t->i2, t->i3}, false);
}

static agk_status multiply(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const plan p = plan_of(node);
    const int64_t all = (int64_t)p.row_blocks * p.groups * node->dst.ne[2] * node->dst.ne[3];
    for (int64_t i = chunk * p.per_chunk; i < agk_mm_least(all, (chunk + 1) * (int64_t)p.per_chunk); ++i) {
        const item t = item_at(task, node, &p, i);
        run_item(task, node, &p, &t);
    }
    return AGK_OK;
}

static bool on_tiles(uint32_t cpu)
{
    const uint32_t needs = AGK_AMX_BF16 | AGK_AVX512 | AGK_AVX512_BF16;
    return (cpu & needs) == needs;
}

/* Quantized rows without AVX-512. */
static bool in_shorts(const agk_view *a, const agk_view *b, uint32_t cpu)
{
    const uint32_t needs = AGK_AVX2 | AGK_FMA | AGK_F16C;
    const agk_bytes_traits bytes = agk_bytes_traits_of(a->type);
    return (cpu & (needs | AGK_AVX512)) == needs && bytes.served &&
           (b->type == AGK_F32 || (b->type == AGK_Q8_0 && !bytes.wide));
}

bool agk_mm_terms_serve(const agk_view *a, const agk_view *b, uint32_t cpu)
{
    const bool bytes = (cpu & AGK_NEON_DOTPROD) != 0 && agk_bytes_traits_of(a->type).served;
    const bool shorts = in_shorts(a, b, cpu), few = bytes || shorts; /* else rows become floats */
    if (b->ne[1] < (few ? BYTES_MIN_COLUMNS : AGK_TERMS_MIN_COLUMNS) || a->ne[1] < AGK_TERMS_COLS || a->ne[0] == 0)
        return false;
    return on_tiles(cpu) || shorts || (cpu & (AGK_AVX512 | AGK_NEON)) != 0;
}

/* Sums of 16 bits, if vpdpbusd does not do without them: then all rows are bytes. */
static int8_t fours_of(int type, uint32_t cpu)
{
#ifdef AGK_BUILD_AVXVNNI
    if ((cpu & AGK_AVX_VNNI) != 0) return 8;
#endif
    (void)cpu;
    return (int8_t)agk_short_fours(type);
}

static bool as_bytes(plan *p, const agk_view *a, const agk_view *b, uint32_t cpu)
{
    const uint32_t vnni = AGK_AVX512 | AGK_AVX512_VNNI;
    const agk_bytes_traits bytes = agk_bytes_traits_of(a->type);
    p->shorts = in_shorts(a, b, cpu);
    if (!p->shorts && (on_tiles(cpu) || ((cpu & vnni) != vnni && (cpu & AGK_NEON_DOTPROD) == 0) || !bytes.served ||
                       (b->type != AGK_F32 && (b->type != AGK_Q8_0 || bytes.wide)))) {
        return false;
    }
    p->bytes = bytes;
    p->lanes = true;
    p->terms = 1;
    p->put = AGK_PICK(mm_terms_put, cpu);
    if (p->shorts) {
        p->fours = fours_of(a->type, cpu);
        p->pack.bytes = AGK_PICK(mm_short_pack, cpu);
        p->row.shorts = AGK_PICK(mm_short_row, cpu);
        p->tile = AGK_PICK(mm_short_tile, cpu);
    } else {
        p->pack.bytes = AGK_PICK(mm_bytes_pack, cpu);
        p->row.bytes = AGK_PICK(mm_bytes_row, cpu);
        p->tile = AGK_PICK(mm_bytes_tile, cpu);
    }
    p->col.bytes = b->type == AGK_Q8_0 ? agk_mm_col_from_q8_0
                   : bytes.wide        ? AGK_PICK(mm_col_q8_wide, cpu)
                                       : AGK_PICK(mm_col_q8, cpu);
    return true;
}

static void choose_kernels(plan *p, const agk_view *a, const agk_view *b, uint32_t cpu)
{
    const bool plain = a->type == AGK_F32 || a->type == AGK_F16;
    if (as_bytes(p, a, b, cpu)) return;
    p->lanes = !on_tiles(cpu);
    p->whole = p->lanes && (plain || (cpu & AGK_FAST_BF16) == 0);
    p->terms = p->whole ? 2 : a->type == AGK_F32 ? 3 : a->type == AGK_F16 ? 2 : 1;
    if (p->lanes) p->put = AGK_PICK(mm_terms_put, cpu);
    if (p->whole) {
        p->pack.floats = AGK_PICK(mm_pack_f32, cpu);
        p->tile = AGK_PICK(mm_lanes_tile, cpu);
    } else {
        p->pack.cols = p->lanes ? AGK_PICK(mm_terms_cols, cpu) : AGK_PICK(mm_tiles_cols, cpu);
        p->tile = p->lanes ? AGK_PICK(mm_terms_tile, cpu) : AGK_PICK(mm_tiles_panel, cpu);
        if (p->lanes)
            p->row.terms = AGK_PICK(mm_terms_row, cpu);
        else
            p->row.turned = AGK_PICK(mm_terms_cols, cpu);
    }
    p->dot = a->type == AGK_F16 ? AGK_PICK(mm_dot_f16, cpu) : AGK_PICK(mm_dot_f32, cpu);
    if (a->type == AGK_BF16 && p->lanes && !p->whole) p->bf16 = AGK_PICK(mm_terms_bf16, cpu);
    if (a->type == AGK_BF16 && !p->lanes) p->bf16_turned = AGK_PICK(mm_tiles_rows, cpu);
    if (a->type != AGK_F32) p->a_floats = agk_reader(a->type, cpu);
    if (b->type != AGK_F32) p->col.floats = agk_reader(b->type, cpu);
}

/* The operand of a sum, if a tile can read it: rows of floats. */
static const agk_view *addend(const agk_node *node, int i)
{
    if (i >= node->n_stages || node->stage[i].op != AGK_OP_add || node->stage[i].operand < 0) return NULL;
    const agk_view *v = agk_has(node, node->stage[i].operand) ? &node->src[node->stage[i].operand] : NULL;
    return v != NULL && v->type == AGK_F32 && v->nb[0] == 4 ? v : NULL;
}

/* Stages as a tile can carry them out: a bias, a function, another addend, in this order, each or none. False: others. */
static bool choose_end(plan *p, const agk_node *node)
{
    int8_t i = 0;
    p->bias = p->act = p->other = -1;
    const agk_view *bias = addend(node, i);
    if (bias != NULL && bias->ne[0] == node->dst.ne[0] && agk_nrows(bias) == 1) p->bias = i++;
    if (i < node->n_stages && agk_terms_act(node->stage[i].op)) p->act = i++;
    const agk_view *other = addend(node, i);
    if (other != NULL && agk_same_shape(other, &node->dst)) p->other = i++;
    return i == node->n_stages;
}

void agk_mm_terms_lower(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *a = &node->src[0], *b = &node->src[1];
    plan p = {.k_block = K_BLOCK};
    choose_kernels(&p, a, b, lowering->cpu);
    p.ends = !p.lanes && choose_end(&p, node);
    const agk_packed_layout *layout = agk_packed_layout_of(a->type);
    if (!p.lanes && lowering->weights != NULL && layout != NULL && layout->sums == AGK_NO_SUMS) {
        p.packed = lowering->packed = agk_packed_acquire(lowering->weights, a);
    }
    if (p.terms == 3) p.k_block = a->ne[0] <= K_MOST_3 ? K_MOST_3 : K_BLOCK_3;
    if (p.terms == 1 && !p.lanes && a->ne[0] <= K_MOST) p.k_block = K_MOST;
    if (p.whole && agk_traits(a->type)->blck_size <= K_BLOCK / 2) p.k_block = K_BLOCK / 2; /* as wide as two terms */
    const int64_t k = a->ne[0], m = a->ne[1], batches = b->ne[2] * b->ne[3], units = units_of(b);
    p.groups = (int32_t)agk_mm_ceil_div(units, COLUMNS / AGK_TERMS_COLS);
    const double products = p.whole ? 1.0 : (double)(p.terms * (p.terms + 1) / 2),
                 flops = 2.0 * (double)k * (double)m * (double)b->ne[1] * products;
    const double slices = flops * (double)batches /
                          (!p.lanes         ? slice_flops
                           : p.bytes.served ? bytes_slice_flops
                                            : lanes_slice_flops);
    const int64_t panels = agk_mm_ceil_div(m, AGK_TERMS_ROWS);
    int64_t blocks = agk_mm_ceil_div(ITEMS, p.groups * batches);
    blocks = agk_mm_least(blocks, agk_mm_ceil_div(m, p.lanes ? LANES_MIN_ROWS : MIN_ROWS));
    blocks = agk_mm_least(blocks, 1 + (int64_t)(slices / (double)p.groups / (double)batches));
    while ((blocks & (blocks - 1)) != 0) blocks &= blocks - 1; /* a power of two is even for most numbers of threads */
    const int64_t fewest = agk_mm_ceil_div(m, max_rows(&p));
    p.row_blocks = (int32_t)agk_mm_least(blocks > fewest ? blocks : fewest, panels);
    const int64_t items = (int64_t)p.row_blocks * p.groups * batches;
    const double per_chunk = (double)items / (slices + 1e-9);
    p.per_chunk = (int32_t)(slices <= 1.5 ? (double)items : per_chunk < 1.0 ? 1.0 : per_chunk);

    const size_t columns = AGK_TERMS_COLS * agk_mm_col_bytes(p.bytes.served ? AGK_MM_Q8 : AGK_MM_FLOATS, p.k_block);
    const size_t floats = p.col.floats == NULL ? 0 : columns > (size_t)k * 4 ? columns : (size_t)k * 4;
    const size_t item_bytes =
        (size_t)(max_rows(&p) / AGK_TERMS_ROWS) * (COLUMNS / 32) * AGK_TERMS_SUMS * sizeof(float) +
        panel_bytes(&p, p.k_block) + (p.lanes ? 0 : (size_t)(AGK_TERMS_COLS * p.k_block) * sizeof(float));
    lowering->scratch_size = floats > item_bytes ? floats : item_bytes;
    lowering->work_size = (size_t)(units * batches) * (unit_bytes(&p, k) + 1);
    p.units_per_chunk = (int32_t)(slices <= 1.5 ? units * batches : 1 + UNIT_BYTES / (AGK_TERMS_COLS * 4 * k));
    memcpy(&lowering->node->aux, &p, sizeof p);
    agk_add_step(lowering, pack, agk_mm_ceil_div(units * batches, p.units_per_chunk));
    agk_add_step(lowering, multiply, agk_mm_ceil_div(items, p.per_chunk));
}
