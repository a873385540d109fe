/* flash_attn_ext: softmax(scale Q K^T + mask) V in one pass over the keys, with ALiBi, softcap and sinks.
 *
 * Here: the lowering. Not here: its steps (flash_look.c, flash_panels.c, flash_walk.c, flash_decode.c, flash_shared.c,
 * flash_parts.c). Online softmax: Milakov and Gimelshein, 2018; Dao et al., 2022. */
#include "lower/refuse.h"
#include "flash_plan.h"

enum {
    PARTS = 16,       /* parts into which the keys of all sequences together are cut, within these limits: */
    PART_KEYS = 128,  /* the fewest keys of a part */
    PART_MOST = 1024, /* the most keys of a part, except for sequences that would then have more parts than */
    MOST_PARTS = 64,
    TERMS_ROWS = 24,        /* with fewer rows in a tile, half of its products are unused */
    TERMS_MOST = 256 << 20, /* bytes of packed keys and values */
    /* bytes of a converted head, half of L2. It holds heads of 128 up to 512 keys; of longer heads, one half at a
     * time */
    HELD_MOST = 512 << 10,
    HELD_CHUNKS = 32, /* chunks that are enough: there are no more of them for the sake of balance if each then had */
    HELD_TILES = 4,   /* fewer tiles than this */
};

static int64_t mask_planes(const agk_view *m)
{
    return m->ne[2] * m->ne[3];
}

static agk_status check_mask(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *q = &node->src[0], *k = &node->src[1], *m = &node->src[3], *sinks = &node->src[4];
    if (!agk_has(node, 3)) {
        if (agk_param_f32(node, 1) > 0.0f) {
            return agk_refuse(lowering, AGK_INVALID, "max_bias is %g without a mask", (double)agk_param_f32(node, 1));
        }
    } else {
        if (m->type != AGK_F16) {
            return agk_refuse(lowering, AGK_UNSUPPORTED, "the mask is %s, not f16", agk_type_name(m->type));
        }
        const bool fits = m->ne[0] == k->ne[1] && (m->ne[1] == 1 || m->ne[1] >= q->ne[1]) && m->ne[2] > 0 &&
                          m->ne[3] > 0 && q->ne[2] % m->ne[2] == 0 && q->ne[3] % m->ne[3] == 0;
        if (!fits || m->nb[0] != 2) {
            return agk_refuse(
                lowering, AGK_INVALID,
                "a mask of %lld x %lld x %lld x %lld for %lld keys, %lld queries, %lld heads, %lld batches",
                (long long)m->ne[0], (long long)m->ne[1], (long long)m->ne[2], (long long)m->ne[3], (long long)k->ne[1],
                (long long)q->ne[1], (long long)q->ne[2], (long long)q->ne[3]);
        }
    }
    if (agk_has(node, 4) && (sinks->type != AGK_F32 || sinks->ne[0] != q->ne[2] || agk_nelements(sinks) != q->ne[2])) {
        return agk_refuse(lowering, AGK_INVALID, "there are %lld sinks of %s; expected f32, one for each of %lld heads",
                          (long long)agk_nelements(sinks), agk_type_name(sinks->type), (long long)q->ne[2]);
    }
    return AGK_OK;
}

static agk_status check_rows(agk_lowering *lowering, const char *name, const agk_view *kv)
{
    const agk_view *q = &lowering->node->src[0];
    const agk_type_traits *traits = agk_traits(kv->type);
    if (traits->to_float == NULL || kv->nb[0] != (int64_t)traits->type_size) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "%s is %s with elements %lld bytes apart", name,
                          agk_type_name(kv->type), (long long)kv->nb[0]);
    }
    if (kv->ne[2] < 1 || kv->ne[3] < 1 || q->ne[2] % kv->ne[2] != 0 || q->ne[3] % kv->ne[3] != 0) {
        return agk_refuse(lowering, AGK_INVALID, "%s has %lld heads and %lld batches, q %lld and %lld", name,
                          (long long)kv->ne[2], (long long)kv->ne[3], (long long)q->ne[2], (long long)q->ne[3]);
    }
    return AGK_OK;
}

static agk_status check(agk_lowering *lowering)
{
    const agk_node *node = lowering->node;
    const agk_view *dst = &node->dst, *q = &node->src[0], *k = &node->src[1], *v = &node->src[2];
    if (q->type != AGK_F32 || dst->type != AGK_F32 || q->nb[0] != 4 || dst->nb[0] != 4) {
        return agk_refuse(lowering, AGK_UNSUPPORTED, "q is %s, the result %s; both must be rows of f32",
                          agk_type_name(q->type), agk_type_name(dst->type));
    }
    if (dst->ne[0] != v->ne[0] || dst->ne[1] != q->ne[2] || dst->ne[2] != q->ne[1] || dst->ne[3] != q->ne[3]) {
        return agk_refuse(lowering, AGK_INVALID,
                          "the result is %lld x %lld x %lld x %lld, which does not fit %lld queries of %lld heads",
                          (long long)dst->ne[0], (long long)dst->ne[1], (long long)dst->ne[2], (long long)dst->ne[3],
                          (long long)q->ne[1], (long long)q->ne[2]);
    }
    if (agk_nelements(dst) == 0) return AGK_OK;
    if (k->ne[0] != q->ne[0] || k->ne[1] != v->ne[1]) {
        return agk_refuse(lowering, AGK_INVALID, "q is %lld wide, k %lld; k has %lld rows, v %lld", (long long)q->ne[0],
                          (long long)k->ne[0], (long long)k->ne[1], (long long)v->ne[1]);
    }
    agk_status status = check_rows(lowering, "k", k);
    if (status == AGK_OK) status = check_rows(lowering, "v", v);
    if (status == AGK_OK && (k->ne[2] != v->ne[2] || k->ne[3] != v->ne[3])) {
        return agk_refuse(lowering, AGK_INVALID, "k has %lld heads and %lld batches, v %lld and %lld",
                          (long long)k->ne[2], (long long)k->ne[3], (long long)v->ne[2], (long long)v->ne[3]);
    }
    const int32_t shared = node->params[AGK_FLASH_SHARED], from = node->params[AGK_FLASH_SHARED_FROM];
    if (status == AGK_OK && (shared < 0 || shared > k->ne[1] || from < 0 || from >= k->ne[3])) {
        return agk_refuse(lowering, AGK_INVALID,
                          "%d keys of batch %d are to be shared, but k has %lld keys and %lld batches", (int)shared,
                          (int)from, (long long)k->ne[1], (long long)k->ne[3]);
    }
    return status == AGK_OK ? check_mask(lowering) : status;
}

/* The number of bf16 terms: enough for all bits of the type, so that a result is as accurate as in lanes. Quantized
 * types are rounded to bf16, within 2^-9. 0: lanes. */
static int choose_terms(const agk_lowering *lowering, int64_t rows)
{
    const agk_view *k = &lowering->node->src[1], *v = &lowering->node->src[2];
    if (rows < TERMS_ROWS || k->ne[1] < AGK_FLASH_PANEL || k->ne[0] == 0) return 0;
    /* there are no tiles; this kernel has no variant in plain C */
    if (AGK_PICK(flash_bf16_tile, lowering->cpu) == NULL) return 0;
    const int of_k = k->type == AGK_F32 ? 3 : k->type == AGK_F16 ? 2 : 1;
    const int of_v = v->type == AGK_F32 ? 3 : v->type == AGK_F16 ? 2 : 1;
    const int terms = of_k > of_v ? of_k : of_v;
    const int64_t heads = k->ne[2] * k->ne[3], width = agk_flash_up(k->ne[0]) + agk_flash_up(v->ne[0]);
    return agk_flash_up(k->ne[1]) * width * heads * terms * 2 <= TERMS_MOST ? terms : 0;
}

/* With few rows and many keys, the work is cut between keys as well, by the shape alone. That makes more units than
 * heads, and memory is read nearly in order: 8 heads of 64 f16 at 300 keys of 8 sequences, two threads: 20.7 -> 13.9
 * us a head. The first block of a part is prefetched only when it is already needed, and a part ends by storing a
 * state, so parts should be long: 8 sequences of 4,096 keys with 32 heads of 128 on 8 take 36.3 ns for a key of a
 * head in parts of 128 keys, 28.8 in parts of 1,024. */
static int64_t keys_of_part(int64_t n_keys, int64_t batches)
{
    const int64_t fewest = (n_keys + MOST_PARTS - 1) / MOST_PARTS;
    int64_t keys = n_keys * batches / PARTS;
    if (keys > PART_MOST) keys = PART_MOST;
    if (keys < fewest) keys = fewest;
    return keys <= PART_KEYS ? PART_KEYS : (keys + AGK_FLASH_KEYS - 1) / AGK_FLASH_KEYS * AGK_FLASH_KEYS;
}

/* On matrix tiles: chooses the kernels, and reserves memory for packed keys and values. */
static void lower_terms(agk_lowering *lowering, agk_flash_plan *plan, int terms)
{
    const agk_node *node = lowering->node;
    const agk_view *k = &node->src[1], *v = &node->src[2];
    plan->terms = terms;
    if (terms == 1) {
        plan->as.bf16.pack = AGK_PICK(flash_bf16_pack, lowering->cpu);
        plan->as.bf16.tile = AGK_PICK(flash_bf16_tile, lowering->cpu);
    } else {
        plan->as.matrix.pack = AGK_PICK(flash_terms_pack, lowering->cpu);
        plan->as.matrix.tile = AGK_PICK(flash_terms_tile, lowering->cpu);
    }
    plan->room = (int64_t)((lowering->work_size + 63) / 64 * 64);
    const int64_t heads = k->ne[2] * k->ne[3], all = agk_flash_panels(node) * heads;
    const size_t head_bytes =
        agk_flash_terms_k_bytes(terms, k->ne[1], k->ne[0]) + agk_flash_terms_k_bytes(terms, k->ne[1], v->ne[0]);
    lowering->work_size = (size_t)plan->room + (size_t)heads * head_bytes + (size_t)all;
    const size_t tile = agk_flash_terms_state_bytes(terms, k->ne[0], v->ne[0]);
    if (lowering->scratch_size < tile) lowering->scratch_size = tile;
}

/* Decides whether bf16 keys and values are used without widening them to f32, where that is faster. It is as
 * accurate as one term on matrix tiles. */
static bool pairs_pay(const agk_lowering *lowering)
{
    const agk_view *k = &lowering->node->src[1], *v = &lowering->node->src[2];
    if (k->type != AGK_BF16 || v->type != AGK_BF16 || k->ne[0] % 2 != 0) return false;
    return AGK_PICK(flash_pairs_block, lowering->cpu) != NULL; /* the gate of this kernel says where it pays off */
}

static void choose_kernels(const agk_lowering *lowering, agk_flash_plan *plan)
{
    const agk_view *k = &lowering->node->src[1], *v = &lowering->node->src[2];
    const uint32_t cpu = lowering->cpu;
    plan->begin = AGK_PICK(flash_begin, cpu);
    plan->block = AGK_PICK(flash_block, cpu);
    plan->end = AGK_PICK(flash_end, cpu);
    plan->read_k.floats = agk_reader(k->type, cpu);
    plan->read_v.floats = agk_reader(v->type, cpu);
    if (plan->terms != 0 || !pairs_pay(lowering)) return;
    plan->flags |= AGK_FLASH_PAIRED;
    /* With an L1 of 48 KB: 512 x 512, heads of 128 714 and 736, of 64 652 and 687 GFLOP/s, two threads of a Zen 5. On a
     * Zen 4 only P stays in L1 until values are multiplied, half as large as S: 64 and 128 keys 0.843 and 0.850 of the
     * peak. */
    if ((cpu & AGK_ZEN5) != 0) plan->flags |= AGK_FLASH_LONG;
#ifdef AGK_BUILD_AMD512 /* else a Zen 4 has the kernel of AVX-512 */
    if ((cpu & AGK_ZMM_HALVES) != 0) plan->flags |= AGK_FLASH_LONG | AGK_FLASH_CUT;
#endif
    plan->begin = AGK_PICK(flash_pairs_begin, cpu);
    plan->block = AGK_PICK(flash_pairs_block, cpu);
    plan->read_v.paired = AGK_PICK(flash_pairs_pack, cpu);
}

/* How many keys of a head are converted at once for all tiles that see them, if there are several tiles. Converting
 * takes a quarter of the time that one tile takes. */
static int64_t keys_to_hold(const agk_lowering *lowering, const agk_flash_plan *plan, int64_t sharing)
{
    const agk_view *k = &lowering->node->src[1], *v = &lowering->node->src[2];
    if (k->ne[1] == 0 || plan->tiles * sharing < 2) return 0;
    const int64_t key = (k->ne[0] + v->ne[0]) * (agk_flash_is(plan, AGK_FLASH_PAIRED) ? 2 : 4);
    if (k->ne[1] * key <= HELD_MOST) return k->ne[1];
    const int64_t some = HELD_MOST / 2 / key / AGK_FLASH_KEYS * AGK_FLASH_KEYS;
    return some < AGK_FLASH_KEYS ? AGK_FLASH_KEYS : some;
}

/* Units of a chunk: whole heads if that makes enough chunks, and many tiles if converted keys are held. */
static int64_t units_of_chunk(const agk_flash_plan *plan, bool whole, int64_t bundle, double unit_ns)
{
    int64_t most = agk_units_per_chunk(plan->units, unit_ns);
    if (plan->held > 0) {
        const int64_t share = plan->units / HELD_CHUNKS;
        const int64_t fewest = !whole ? bundle : share < HELD_TILES ? HELD_TILES : share;
        if (most < fewest) most = fewest;
    }
    if (most > plan->tiles && most < plan->units) return most - most % plan->tiles;
    return most < plan->tiles && plan->tiles <= 2 * most ? plan->tiles : most;
}

/* -- few rows (decoding) -------------------------------------------------------------------------------------- */

enum {
    BUNCHES = 8,           /* bunches of a node: fewer would leave threads without work */
    BLOCK_BYTES = 1 << 18, /* keys and values of a block, of all heads of a bunch: two blocks are half of L2 */
    BLOCK_LARGE = 512,     /* keys of a part; in shorter parts a block has half as many bytes */
    BLOCK_LEAST = 16,      /* keys */
    HEADS_KEYS = 4096,     /* keys of all heads that one call computes: less than 0.1 ms */
};

/* How many heads a bunch has: as many as lie side by side, so that memory is read from end to end. */
static int32_t heads_together(const agk_node *node, const agk_flash_decode_plan *plan, int64_t bytes)
{
    for (int32_t n = plan->heads < AGK_FLASH_DECODE_HEADS ? plan->heads : AGK_FLASH_DECODE_HEADS; n > 1; --n) {
        const int64_t bunches = plan->heads / n * plan->parts * node->src[0].ne[3];
        if (plan->heads % n == 0 && bunches >= BUNCHES && n * bytes * BLOCK_LEAST <= BLOCK_BYTES) return n;
    }
    return 1;
}

/* How many heads of Q that share a head of K are rows of one unit: all of them, or the most that divide their
 * number. */
static int64_t heads_of_unit(int64_t group)
{
    int64_t heads = group < AGK_FLASH_TILE ? group : AGK_FLASH_TILE;
    while (group % heads != 0) --heads;
    return heads;
}

/* Whether and how a kernel computes a block of all heads. With AVX-512 that of AVX2 has half the products of the kernel
 * for one head. */
static void choose_all_heads(const agk_lowering *lowering, agk_flash_decode_plan *plan)
{
    const uint32_t cpu = lowering->cpu;
    const bool vectors = (cpu & AGK_AVX512) != 0;
    if (vectors && (cpu & AGK_AMD512) == 0) return;
    plan->all_heads = AGK_PICK(flash_heads, cpu);
    plan->at_once = (uint16_t)plan->block_keys;
    plan->asked = vectors ? AGK_FLASH_ASKED_BYTES : AGK_FLASH_ASKED_KEYS;
    if (vectors && (cpu & AGK_ZEN5) == 0) {
        const int32_t most = HEADS_KEYS / plan->together / AGK_FLASH_KEYS * AGK_FLASH_KEYS;
        plan->at_once = (uint16_t)(most < AGK_FLASH_KEYS ? AGK_FLASH_KEYS : most);
        plan->asked = AGK_FLASH_ASKED_BOTH;
    }
}

static void lower_decode(agk_lowering *lowering, bool grouped, int64_t rows)
{
    agk_node *node = lowering->node;
    const agk_view *q = &node->src[0], *k = &node->src[1], *v = &node->src[2];
    const uint32_t cpu = lowering->cpu;
    const int64_t shared = agk_flash_shared_keys(node), n_keys = k->ne[1] - shared, width = q->ne[0] + v->ne[0];
    agk_flash_decode_plan plan = {.grouped = grouped, .rows = (int32_t)rows};
    plan.heads = (int32_t)(grouped ? q->ne[2] / rows : q->ne[2]);
    plan.part_keys = keys_of_part(n_keys, q->ne[3]);
    plan.parts = n_keys > plan.part_keys ? (int32_t)((n_keys + plan.part_keys - 1) / plan.part_keys) : 1;
    const int64_t bytes = (int64_t)(agk_row_size(k->type, k->ne[0]) + agk_row_size(v->type, v->ne[0]));
    plan.together = heads_together(node, &plan, bytes);
    const int64_t most = plan.part_keys < BLOCK_LARGE ? BLOCK_BYTES / 2 : BLOCK_BYTES;
    int64_t block = bytes > 0 ? most / (plan.together * bytes) / BLOCK_LEAST * BLOCK_LEAST : BLOCK_LEAST;
    if (block < BLOCK_LEAST) block = BLOCK_LEAST;
    plan.block_keys = (int32_t)(block < AGK_FLASH_KEYS ? block : AGK_FLASH_KEYS);
    plan.begin = AGK_PICK(flash_narrow_begin, cpu);
    plan.block = AGK_PICK(flash_narrow_block, cpu);
    plan.end = AGK_PICK(flash_narrow_end, cpu);
    if ((k->type == AGK_Q8_0 || k->type == AGK_Q4_0) && AGK_PICK(flash_codes_block, cpu) != NULL) {
        plan.begin = AGK_PICK(flash_codes_begin, cpu);
        plan.block = AGK_PICK(flash_codes_block, cpu);
    }
    choose_all_heads(lowering, &plan);
    plan.read_k = agk_reader(k->type, cpu);
    plan.read_v = agk_reader(v->type, cpu);
    const int64_t bunches = plan.heads / plan.together * plan.parts * q->ne[3]; /* each sequence's own keys */
    if (shared > 0) agk_flash_plan_shared(lowering, &plan);
    plan.parts += plan.shared_parts;
    if (agk_has(node, 3)) {
        lowering->work_size = (size_t)mask_planes(&node->src[3]) * sizeof(agk_flash_mask);
        agk_add_step(lowering, agk_flash_look_step, agk_flash_looks(node));
    }
    if (plan.parts > 1) {
        plan.room = (int64_t)((lowering->work_size + 63) / 64 * 64);
        const int64_t floats = agk_nrows(q) * plan.parts * (2 + node->dst.ne[0]);
        lowering->work_size = (size_t)plan.room + (size_t)floats * sizeof(float);
    }
    /* 4 rows of an 8th of 256 take 4.5 ns a key, one row takes 2. */
    const double key_ns = (double)width * (0.04 + 0.025 * (double)rows);
    const int64_t keys = n_keys < plan.part_keys ? n_keys : plan.part_keys;
    plan.per_chunk = agk_units_per_chunk(bunches, (double)(keys * plan.together) * key_ns + 100.0);
    memcpy(&node->aux, &plan, sizeof plan);
    const int64_t floats = plan.together * agk_flash_narrow_floats(rows, q->ne[0], v->ne[0]) + plan.block_keys * width;
    const size_t scratch = (size_t)floats * sizeof(float);
    if (lowering->scratch_size < scratch) lowering->scratch_size = scratch;
    if (shared > 0) agk_flash_add_shared(lowering, &plan);
    agk_add_step(lowering, agk_flash_decode_step, agk_chunks(bunches, plan.per_chunk));
    if (plan.parts > 1) {
        agk_add_step(lowering, agk_flash_combine_step, agk_chunks(agk_nrows(q), agk_flash_combined(node, plan.parts)));
    }
}

agk_status agk_lower_flash_attn_ext(agk_lowering *lowering)
{
    agk_node *node = lowering->node;
    const agk_view *q = &node->src[0], *k = &node->src[1], *v = &node->src[2], *m = &node->src[3];
    const agk_status status = check(lowering);
    if (status != AGK_OK || agk_nelements(&node->dst) == 0) return status;

    const int64_t group = q->ne[2] / k->ne[2], rows = q->ne[1];
    if (agk_flash_sparse_lower(lowering, heads_of_unit(group))) return AGK_OK;
    /* The scalar kernel serves few rows and many, and reads f32. */
    const bool vectors = !AGK_IS_PLAIN(flash_narrow_block, AGK_PICK(flash_narrow_block, lowering->cpu));
    const int64_t heads = rows == 1 && (!agk_has(node, 3) || m->ne[2] == 1) ? heads_of_unit(group) : 1;
    if (vectors && rows < AGK_FLASH_NARROW) {
        lower_decode(lowering, heads > 1, heads > 1 ? heads : rows);
        return AGK_OK;
    }
    const int64_t width = q->ne[0] + v->ne[0], n_keys = k->ne[1];
    agk_flash_plan plan = {.tiles = (int32_t)agk_flash_tiles(node)};
    plan.units = plan.tiles * q->ne[2] * q->ne[3];
    if (agk_has(node, 3)) lowering->work_size = (size_t)(mask_planes(m) * plan.tiles) * sizeof(agk_flash_mask);
    const int terms = choose_terms(lowering, rows);
    if (terms != 0) lower_terms(lowering, &plan, terms);
    choose_kernels(lowering, &plan);
    plan.held = (int32_t)keys_to_hold(lowering, &plan, group);
    const bool small = n_keys * width * 4 <= HELD_MOST;
    plan.flags |= (plan.held > 0 ? AGK_FLASH_HELD : 0u) | (small ? AGK_FLASH_AHEAD : 0u);
    /* A tile makes some 60 products per ns; half of that if its rows fill one vector only. */
    const double each = rows > AGK_FLASH_TILE / 2 ? 0.4 : 0.25;
    static const double terms_each[4] = {1.0, 0.1, 0.2, 0.4}; /* the time relative to lanes, by the number of terms */
    const double unit_ns = (double)(n_keys * width) * each * terms_each[terms] * (vectors ? 1.0 : 40.0) + 100.0;
    const int64_t bundle = agk_flash_bundle(node, plan.held);
    plan.per_chunk = units_of_chunk(&plan, plan.held == n_keys, bundle, unit_ns);
    memcpy(&node->aux, &plan, sizeof plan);

    const int64_t keys = plan.held > 0 ? plan.held : AGK_FLASH_KEYS;
    const int64_t floats = bundle * agk_flash_state_floats(q->ne[0], v->ne[0]) + keys * width;
    size_t scratch = (size_t)floats * sizeof(float);
    /* the state is stored behind it */
    if (terms == 1) scratch = (scratch + 63) / 64 * 64 + agk_flash_bf16_state_bytes(q->ne[0], v->ne[0]);
    if (lowering->scratch_size < scratch) lowering->scratch_size = scratch;
    if (agk_has(node, 3)) agk_add_step(lowering, agk_flash_look_step, agk_flash_looks(node));
    if (terms != 0) {
        const int64_t all = agk_flash_panels(node) * k->ne[2] * k->ne[3];
        agk_add_step(lowering, agk_flash_pack_step, agk_chunks(all, AGK_FLASH_PACK_PANELS));
    }
    agk_add_step(lowering, agk_flash_walk_step, agk_chunks(plan.units, plan.per_chunk));
    return AGK_OK;
}
