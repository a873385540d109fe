/* flash_attn_ext in two or three bf16 terms on AMX: 32 rows, 256 keys at a time. S^T = K Q^T and O^T = V^T P^T have
 * rows of Q in the lanes, so softmax needs no sums across lanes, keys keep their natural order, and only values are
 * transposed.
 *
 * Not here: one term (flash_bf16.c), the steps (lower/attention/flash_panels.c), f32 lanes (kernels/vec/flash.h). */
#include "kernels/flash.h"
#include "kernels/avx512/mul_mat_terms.h"

/* For mul_mat_terms.h: the lines of the sums are rows, and nothing is prefetched meanwhile. */
#define AGK_DP(sum, rows, cols) _tile_dpbf16ps(sum, rows, cols)
#define TERM_OF_ROWS PAIR
typedef void requests;

static inline void fetch(requests *ahead, int i, int n)
{
    (void)ahead;
    (void)i;
    (void)n;
}

#include "mul_mat_terms.h"

#include "kernels/avx512/math.h"
#include "kernels/vec/math.h"

enum { UNIT = 16, KEYS = AGK_FLASH_AT_ONCE, PANEL_SUMS = AGK_PANEL_SUMS };

bool agk_flash_terms_pack_amx(int terms, int64_t n, int64_t d, const float *k, int64_t dv, const float *v, void *k_out,
                              void *v_out, size_t v_step)
{
    bool fine = true;
    if (n < 32) memset(k_out, 0, agk_terms_panel_bytes(terms, d));
    for (int64_t i = 0; i < n; ++i)
        fine = agk_mm_pairs_rows_avx512(terms, d, k + i * d, (char *)k_out + 64 * i) && fine;
    for (int64_t i = 0; i < agk_flash_up(dv); i += 16) {
        vf half[2][16];
        char *out = (char *)v_out + (size_t)(i / 32) * v_step + (size_t)(i % 32) * 64;
        const int64_t part = dv - i;
        __mmask16 bad = 0;
        for (int h = 0; h < 2; ++h) {
            AGK_UNROLL for (int j = 0; j < 16; ++j)
            {
                half[h][j] = v_zero();
                if (16 * h + j < n && part > 0) half[h][j] = v_load_n(v + (16 * h + j) * dv + i, part < 16 ? part : 16);
            }
            v_transpose(half[h]);
        }
        AGK_UNROLL for (int j = 0; j < 16; ++j)
        {
            __m512i t[3];
            bad |= terms == 2 ? split(2, half[0][j], half[1][j], t) : split(3, half[0][j], half[1][j], t);
            for (int y = 0; y < terms; ++y) _mm512_store_si512(out + y * PAIR + 64 * j, t[y]);
        }
        fine = fine && bad == 0;
    }
    return fine;
}

typedef struct state {
    float *rows, *s, *o;
    char *q, *p;
    size_t q_unit, p_unit; /* bytes from one unit of 16 rows to the next */
    __m512 max[2], sum[2];
} state;

/* sums = or += the panel times one or two units, over k / 32 steps */
AGK_INLINE void product(int terms, bool two_cols, bool add, int64_t steps, const char *a, const char *b, size_t ldb,
                        float *sums)
{
    const bool two_rows = true;
    if (add)
        EACH(RESUME);
    else
        EACH(ZERO);
    for (int64_t i = 0; i < steps; ++i, a += terms * PAIR, b += terms * TILE)
        step(terms, true, two_cols, a, TILE, b, ldb, NULL);
    EACH(KEEP);
}

/* Softcap and mask of keys first .. first + 31 in s [32 keys][16 rows]; keys outside of begin .. end - 1 are masked. */
AGK_INLINE void finish_logits(const agk_flash_tile *t, const agk_flash_terms *x, int64_t first, int64_t lane, float *s)
{
    const vf low = v_set(-__builtin_inff()), cap = v_set(t->softcap), slope = v_load(t->slope + lane);
    if (t->softcap > 0.0f) {
        for (int j = 0; j < 32; ++j) v_store(s + 16 * j, cap * v_tanh(v_load(s + 16 * j)));
    }
    if (t->mask_form != AGK_FLASH_NO_MASK) {
        const int64_t rows = t->n_rows - lane < 16 ? t->n_rows - lane : 16, keys = x->n_keys - first;
        const char *from = t->mask + lane * t->mask_step + 2 * first;
        const uint32_t there = keys < 32 ? (1u << keys) - 1 : ~0u;
        __m512i any = _mm512_setzero_si512(), m[16];
        AGK_UNROLL for (int r = 0; r < 16; ++r)
        {
            m[r] = _mm512_setzero_si512();
            if (r < rows) m[r] = _mm512_maskz_loadu_epi16(there, from + r * t->mask_step);
            any = _mm512_or_si512(any, m[r]);
        }
        if (_mm512_test_epi32_mask(any, any) != 0) {
            for (int h = 0; h < 2; ++h) {
                vf mask[16];
                AGK_UNROLL for (int r = 0; r < 16; ++r)
                {
                    const __m256i part = h == 0 ? _mm512_castsi512_si256(m[r]) : _mm512_extracti64x4_epi64(m[r], 1);
                    mask[r] = _mm512_cvtph_ps(part);
                }
                v_transpose(mask);
                AGK_UNROLL for (int j = 0; j < 16; ++j)
                {
                    float *at = s + 16 * (16 * h + j);
                    const vf v = v_fma(mask[j], slope, v_load(at));
                    /* a masked key counts nothing, even if it is NaN */
                    v_store(at, v_select(v_eq(mask[j], low), low, v));
                }
            }
        }
    }
    for (int64_t j = 0; j < 32; ++j) {
        if (first + j < x->begin || first + j >= x->end) v_store(s + 16 * j, low);
    }
}

/* The terms of the probabilities of two keys, as pairs. */
AGK_INLINE void put_pair(int terms, vf even, vf odd, char *out)
{
    const __m512i pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    AGK_UNROLL for (int u = 0; u + 1 < terms; ++u)
    {
        const __m512i high = _mm512_castps_si512(upper(odd)), both = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
        _mm512_store_si512(out + u * TILE, _mm512_or_si512(high, both));
        even = even - upper(even);
        odd = odd - upper(odd);
    }
    const __m512i last = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    _mm512_store_si512(out + (terms - 1) * TILE, _mm512_permutexvar_epi16(pairs, last));
}

/* Probabilities of `panels` x 32 keys for one unit of rows. Where a maximum grew, O and the sums are scaled down. */
AGK_INLINE void soft_max(int terms, const agk_flash_tile *t, state *f, int u, int64_t panels)
{
    const float *s = f->s + 512 * u;
    const vf low = v_set(-__builtin_inff()), old = f->max[u];
    vf most[4] = {old, old, old, old}, sum[2] = {v_zero(), v_zero()};
    for (int64_t p = 0; p < panels; ++p) {
        for (int j = 0; j < 32; j += 4) {
            AGK_UNROLL for (int i = 0; i < 4; ++i)
            {
                most[i] = v_max(v_load(s + p * PANEL_SUMS + 16 * (j + i)), most[i]);
            }
        }
    }
    const vf max = v_max(v_max(most[0], most[1]), v_max(most[2], most[3]));
    /* for a row that has seen no key so far: exp(-inf - 0) = 0 */
    const vf safe = v_select(v_eq(max, low), v_zero(), max);
    if (v_any(v_lt(old, max))) {
        const vf shrink = v_exp(old - safe);
        f->sum[u] = f->sum[u] * shrink;
        if (v_any(v_lt(low, old))) {
            for (int64_t i = 0; i < agk_flash_up(t->dv); ++i) {
                float *o = f->o + i / 32 * PANEL_SUMS + 512 * u + i % 32 * 16;
                v_store(o, v_load(o) * shrink);
            }
        }
        f->max[u] = max;
    }
    for (int64_t p = 0; p < panels; ++p) {
        const float *from = s + p * PANEL_SUMS;
        char *out = f->p + (size_t)u * f->p_unit + (size_t)(p * terms) * TILE;
#pragma GCC unroll 2
        for (int j = 0; j < 32; j += 2) { /* more at once would spill */
            vf e[2];
            AGK_UNROLL for (int i = 0; i < 2; ++i)
            {
                e[i] = v_exp(v_load(from + 16 * (j + i)) - safe);
                sum[i] = sum[i] + e[i];
            }
            put_pair(terms, e[0], e[1], out + 32 * j);
        }
    }
    f->sum[u] = f->sum[u] + (sum[0] + sum[1]);
}

/* Prefetches lines that are needed soon: row i of the result, and of the next tile of Q. They are far from L1, and
 * far apart. */
AGK_INLINE void fetch_row(const agk_flash_tile *t, int64_t i)
{
    if (i < t->n_rows) {
        for (int64_t j = 0; j < t->dv; j += 16) __builtin_prefetch(t->out + i * t->out_step + 4 * j, 1, 2);
    }
    /* behind the last tile of a head, this is a row of another head */
    const uintptr_t next = (uintptr_t)t->q + (uintptr_t)((32 + i) * t->q_step);
    for (int64_t j = 0; j < t->d; j += 16) _mm_prefetch((const char *)(next + (uintptr_t)(4 * j)), _MM_HINT_T1);
}

AGK_INLINE void all_keys(int terms, bool two, const agk_flash_tile *t, const agk_flash_terms *x, state *f)
{
    const int64_t wide = agk_panel_steps(t->d), all = agk_panel_steps(x->n_keys), values = agk_panel_steps(t->dv);
    int64_t fetched = 0;
    const bool plain = t->softcap <= 0.0f && t->mask_form == AGK_FLASH_NO_MASK;
    for (int64_t first = x->begin / 32 * 32; first < x->end; first += KEYS) {
        const int64_t left = agk_panel_steps(x->end - first), panels = left < KEYS / 32 ? left : KEYS / 32;
        for (int64_t p = 0; p < panels; ++p) {
            const int64_t key = first + 32 * p;
            float *s = f->s + p * PANEL_SUMS;
            product(terms, two, false, wide, x->k + (size_t)(key / 32 * wide * terms) * PAIR, f->q, f->q_unit, s);
            for (int i = 0; i < 4 && fetched < 32; ++i) fetch_row(t, fetched++);
            if (plain && key >= x->begin && key + 32 <= x->end) continue;
            for (int u = 0; u <= two; ++u) finish_logits(t, x, key, 16 * u, s + 512 * u);
        }
        while (fetched < 32) fetch_row(t, fetched++);
        for (int u = 0; u <= two; ++u) soft_max(terms, t, f, u, panels);
        for (int64_t i = 0; i < values; ++i) {
            const char *v = x->v + (size_t)((i * all + first / 32) * terms) * PAIR;
            product(terms, two, true, panels, v, f->p, f->p_unit, f->o + i * PANEL_SUMS);
        }
    }
}

/* O^T divided by the sums and transposed, to rows of the result. */
AGK_INLINE void finish(const agk_flash_tile *t, const state *f)
{
    const vf low = v_set(-__builtin_inff());
    for (int u = 0; 16 * u < t->n_rows; ++u) {
        const vf max = f->max[u], sum = f->sum[u], sink = v_load(t->sink + 16 * u), top = v_max(max, sink);
        const vf safe = v_select(v_eq(top, low), v_zero(), top), shrink = v_exp(max - safe);
        const vf total = v_fma(sum, shrink, v_exp(sink - safe));
        const vf scale = v_select(v_eq(sum, v_zero()), v_zero(), shrink / total);
        for (int64_t i = 0; i < t->dv; i += 16) {
            const float *o = f->o + i / 32 * PANEL_SUMS + 512 * u + i % 32 * 16;
            const int64_t part = t->dv - i < 16 ? t->dv - i : 16;
            vf r[16];
            AGK_UNROLL for (int j = 0; j < 16; ++j) r[j] = v_load(o + 16 * j) * scale;
            v_transpose(r);
            AGK_UNROLL for (int j = 0; j < 16; ++j)
            {
                if (16 * u + j < t->n_rows)
                    v_store_n((float *)(void *)(t->out + (16 * u + j) * t->out_step) + i, r[j], part);
            }
        }
    }
}

AGK_INLINE bool tile(int terms, const agk_flash_tile *t, const agk_flash_terms *x)
{
    const int64_t wide = agk_flash_up(t->d), high = agk_flash_up(t->dv);
    const vf scale = v_set(t->softcap > 0.0f ? t->scale / t->softcap : t->scale);
    state f = {
        .rows = t->state, .q_unit = agk_terms_unit_bytes(terms, t->d), .p_unit = agk_terms_unit_bytes(terms, KEYS)};
    f.s = f.rows + 32 * wide;
    f.o = f.s + 32 * KEYS;
    f.q = (char *)(f.o + 32 * high);
    f.p = f.q + 2 * f.q_unit;
    bool fine = true;
    for (int u = 0; u < 2; ++u) {
        const int64_t rows = t->n_rows - 16 * u < 16 ? t->n_rows - 16 * u : 16;
        for (int64_t j = 0; j < rows; ++j) {
            const float *q = (const float *)(const void *)(t->q + (16 * u + j) * t->q_step);
            for (int64_t i = 0; i < t->d; i += 16) {
                const int64_t part = t->d - i < 16 ? t->d - i : 16;
                v_store(f.rows + j * wide + i, v_load_n(q + i, part) * scale);
            }
        }
        if (rows > 0)
            fine =
                agk_mm_pairs_columns_avx512(terms, t->d, rows, f.rows, (size_t)wide * 4, f.q + (size_t)u * f.q_unit) &&
                fine;
        f.max[u] = v_set(-__builtin_inff());
        f.sum[u] = v_zero();
    }
    if (!fine) return false;
    memset(f.o, 0, (size_t)(32 * high) * 4);
    agk_tiles_configure(
        (const agk_tile_shape[8]){{16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}});
    if (t->n_rows > 16)
        all_keys(terms, true, t, x, &f);
    else
        all_keys(terms, false, t, x, &f);
    _tile_release();
    finish(t, &f);
    return true;
}

bool agk_flash_terms_tile_amx(const agk_flash_tile *t, const agk_flash_terms *x)
{
    return x->terms == 2 ? tile(2, t, x) : tile(3, t, x);
}
