/* flash_attn_ext on matrix tiles: packs keys and values once for all tiles of rows, and computes one such tile.
 *
 * Not here: the kernels (kernels/amx/flash_terms.c; kernels/scalar/flash_terms.c), the walk over tiles
 * (flash_walk.c). */
#include "flash_plan.h"

/* The layout of packed memory: the keys of a head, then its values, head by head; behind all heads a flag for each
 * panel of each head that says whether it could be split into terms. */
typedef struct packed {
    char *k, *v;
    bool *fine;
    size_t v_step; /* the distance between panels of 32 elements of the width of values */
} packed;

static packed packed_at(const agk_task *task, const agk_node *node, int64_t head)
{
    const agk_view *k = &node->src[1], *v = &node->src[2];
    const agk_flash_plan plan = agk_flash_plan_of(node);
    const int terms = plan.terms;
    const size_t keys = agk_flash_terms_k_bytes(terms, k->ne[1], k->ne[0]);
    const size_t values = agk_flash_terms_k_bytes(terms, k->ne[1], v->ne[0]);
    char *base = (char *)agk_work(task, node) + plan.room;
    packed p = {.k = base + (size_t)head * (keys + values)};
    p.v = p.k + keys;
    p.v_step = agk_flash_terms_k_bytes(terms, k->ne[1], AGK_FLASH_PANEL);
    p.fine = (bool *)(void *)(base + (size_t)(k->ne[2] * k->ne[3]) * (keys + values)) + head * agk_flash_panels(node);
    return p;
}

/* The keys of a head of k that any row of q sees: first .. last - 1. */
static void find_seen(const agk_task *task, const agk_node *node, int64_t head, int64_t *first, int64_t *last)
{
    const agk_view *q = &node->src[0], *k = &node->src[1], *m = &node->src[3];
    *first = 0;
    *last = k->ne[1];
    if (!agk_has(node, 3)) return;
    const agk_flash_mask *looks = agk_work(task, node);
    const int64_t tiles = agk_flash_tiles(node), group = q->ne[2] / k->ne[2], batches = q->ne[3] / k->ne[3];
    const int64_t heads = m->ne[2] == 1 ? 1 : group, kv = head % k->ne[2], kv_batch = head / k->ne[2];
    *first = k->ne[1];
    *last = 0;
    for (int64_t i = 0; i < batches * heads * tiles; ++i) {
        const int64_t m2 = (kv * group + i / tiles % heads) % m->ne[2];
        const int64_t m3 = (kv_batch * batches + i / tiles / heads) % m->ne[3];
        const agk_flash_mask *seen = &looks[(m3 * m->ne[2] + m2) * tiles + i % tiles];
        if (seen->begin < *first && seen->begin < seen->end) *first = seen->begin;
        if (seen->end > *last) *last = seen->end;
    }
}

/* Panels that no row sees are left out: nothing reads them. */
agk_status agk_flash_pack_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *k = &node->src[1], *v = &node->src[2];
    const int64_t panels = agk_flash_panels(node), all = panels * k->ne[2] * k->ne[3];
    const agk_flash_plan plan = agk_flash_plan_of(node);
    const int terms = plan.terms;
    const size_t k_step = agk_flash_terms_k_bytes(terms, AGK_FLASH_PANEL, k->ne[0]);
    int64_t known = -1, seen_first = 0, seen_last = 0;
    for (int64_t i = chunk * AGK_FLASH_PACK_PANELS; i < all && i < (chunk + 1) * AGK_FLASH_PACK_PANELS; ++i) {
        const int64_t head = i / panels, panel = i % panels, first = panel * AGK_FLASH_PANEL;
        const int64_t left = k->ne[1] - first, n = left < AGK_FLASH_PANEL ? left : AGK_FLASH_PANEL;
        const int64_t i2 = head % k->ne[2], i3 = head / k->ne[2];
        if (head != known) find_seen(task, node, head, &seen_first, &seen_last);
        known = head;
        if (first >= seen_last || first + n <= seen_first) continue;
        const char *k_rows = (const char *)agk_data(task, k) + i2 * k->nb[2] + i3 * k->nb[3];
        const char *v_rows = (const char *)agk_data(task, v) + i2 * v->nb[2] + i3 * v->nb[3];
        float *keys = task->scratch, *values = keys + AGK_FLASH_PANEL * k->ne[0];
        const packed p = packed_at(task, node, head);
        char *k_out = p.k + (size_t)panel * k_step, *v_out = p.v + (size_t)panel * (size_t)terms * 2048;
        if (terms == 1 && k->type == AGK_BF16 && v->type == AGK_BF16) {
            p.fine[panel] = plan.as.bf16.pack(false, n, k->ne[0], k_rows + first * k->nb[1], k->nb[1], v->ne[0],
                                              v_rows + first * v->nb[1], v->nb[1], k_out, v_out, p.v_step);
            continue;
        }
        agk_flash_floats(k, k_rows, plan.read_k.floats, first, n, keys);
        agk_flash_floats(v, v_rows, plan.read_v.floats, first, n, values);
        if (terms == 1)
            p.fine[panel] = plan.as.bf16.pack(true, n, k->ne[0], keys, 4 * k->ne[0], v->ne[0], values, 4 * v->ne[0],
                                              k_out, v_out, p.v_step);
        else
            p.fine[panel] = plan.as.matrix.pack(terms, n, k->ne[0], keys, v->ne[0], values, k_out, v_out, p.v_step);
    }
    return AGK_OK;
}

bool agk_flash_bf16_of(const agk_task *task, const agk_node *node, int64_t head, int64_t begin, int64_t end,
                       agk_flash_terms *x)
{
    const packed p = packed_at(task, node, head);
    for (int64_t i = begin / AGK_FLASH_PANEL; i * AGK_FLASH_PANEL < end; ++i) {
        if (!p.fine[i]) return false;
    }
    *x = (agk_flash_terms){
        .terms = 1, .n_keys = node->src[1].ne[1], .begin = begin, .end = end, .clear_end = end, .k = p.k, .v = p.v};
    return begin < end;
}

bool agk_flash_matrix_tile(const agk_task *task, const agk_node *node, const agk_flash_tile *t, int64_t head,
                           int64_t begin, int64_t end)
{
    const agk_flash_plan plan = agk_flash_plan_of(node);
    const packed p = packed_at(task, node, head);
    for (int64_t i = begin / AGK_FLASH_PANEL; i * AGK_FLASH_PANEL < end; ++i) {
        if (!p.fine[i]) return false;
    }
    const agk_flash_terms x = {
        .terms = plan.terms, .n_keys = node->src[1].ne[1], .begin = begin, .end = end, .k = p.k, .v = p.v};
    return plan.as.matrix.tile(t, &x);
}
