/* flash_attn_ext, its first step, which looks at the mask. For each tile of rows it finds the keys that the tile sees
 * at all, and the keys for which the mask can be ignored.
 *
 * Not here: the use of the result (flash_walk.c, flash_decode.c). */
#include "flash_plan.h"

static const uint16_t minus_infinity = 0xfc00;

/* The first element from `i` on, before `end`, whose bits differ from x. */
static int64_t first_other(const uint16_t *row, int64_t i, int64_t end, uint16_t x)
{
    const uint64_t four = x * 0x0001000100010001u;
    uint64_t found;
    for (; i + 4 <= end; i += 4) {
        memcpy(&found, row + i, sizeof found);
        if (found != four) break;
    }
    while (i < end && row[i] == x) ++i;
    return i;
}

static int64_t last_other(const uint16_t *row, int64_t end, uint16_t x) /* and the same for a single row */
{
    const uint64_t four = x * 0x0001000100010001u;
    uint64_t found;
    for (; end >= 4; end -= 4) {
        memcpy(&found, row + end - 4, sizeof found);
        if (found != four) break;
    }
    while (end > 0 && row[end - 1] == x) --end;
    return end;
}

static agk_flash_mask look(const char *rows, int64_t stride, int64_t n_rows, int64_t n_keys)
{
    agk_flash_mask found = {.form = AGK_FLASH_NO_MASK, .begin = (int32_t)n_keys, .clear_end = (int32_t)n_keys};
    bool same = true;
    for (int64_t i = 0; i < n_rows; ++i) {
        const uint16_t *row = (const uint16_t *)(const void *)(rows + i * stride);
        const int64_t end = last_other(row, n_keys, minus_infinity);
        const int64_t begin = first_other(row, 0, end, minus_infinity), clear = first_other(row, begin, end, 0);
        if (begin < found.begin && begin < end) found.begin = (int32_t)begin;
        if (end > found.end) found.end = (int32_t)end;
        if (begin > found.clear_begin) found.clear_begin = (int32_t)begin;
        if (clear < found.clear_end) found.clear_end = (int32_t)clear;
        same = same && (i == 0 || memcmp(rows, row, (size_t)n_keys * sizeof *row) == 0);
    }
    if (found.begin > found.end) found.begin = found.end;
    const bool clear = found.clear_begin <= found.begin && found.clear_end >= found.end;
    found.form = clear ? AGK_FLASH_NO_MASK : same ? AGK_FLASH_SAME_MASK : AGK_FLASH_FULL_MASK;
    return found;
}

static int64_t tiles_per_chunk(const agk_node *node)
{
    const int64_t tiles = agk_flash_tiles(node);
    return agk_units_per_chunk(tiles, 0.1 * AGK_FLASH_TILE * (double)node->src[1].ne[1] + 20.0);
}

static int64_t chunks_of_plane(const agk_node *node)
{
    return agk_chunks(agk_flash_tiles(node), tiles_per_chunk(node));
}

int64_t agk_flash_looks(const agk_node *node)
{
    return chunks_of_plane(node) * node->src[3].ne[2] * node->src[3].ne[3];
}

/* A chunk is several tiles of one plane of the mask. */
agk_status agk_flash_look_step(const agk_task *task, const agk_node *node, int64_t chunk)
{
    const agk_view *q = &node->src[0], *m = &node->src[3];
    const int64_t tiles = agk_flash_tiles(node), per_plane = chunks_of_plane(node);
    const int64_t i = chunk / per_plane, per_chunk = tiles_per_chunk(node);
    agk_flash_mask *found = (agk_flash_mask *)agk_work(task, node) + i * tiles;
    const char *plane = (const char *)agk_data(task, m) + i % m->ne[2] * m->nb[2] + i / m->ne[2] * m->nb[3];
    const int64_t stride = m->ne[1] == 1 ? 0 : m->nb[1], last = agk_chunk_end(chunk % per_plane, per_chunk, tiles);
    for (int64_t tile = chunk % per_plane * per_chunk; tile < last; ++tile) {
        const int64_t first = tile * AGK_FLASH_TILE, rest = q->ne[1] - first;
        const int64_t rows = stride == 0 ? 1 : rest < AGK_FLASH_TILE ? rest : AGK_FLASH_TILE;
        found[tile] = look(plane + first * stride, stride, rows, node->src[1].ne[1]);
    }
    return AGK_OK;
}
