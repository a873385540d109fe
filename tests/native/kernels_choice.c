/* The kernels that are chosen for this machine. For each kernel it is the first variant of the list that the machine
 * can run. Every instruction set that kernels.def names is used if the machine has it. The environment variable
 * AGK_EXPECT names the instruction set whose kernels must be the best: this checks that features of an emulated
 * processor are detected. */
#include <ctype.h>
#include <string.h>

#include "check.h"
#include "table/kernel_types.h"
#include "kernels/mul_mat.h"
#include "lower/mul_mat/scheme.h"

static bool runs(size_t i) /* and runs fast: `gate` holds, too */
{
    return ((agk_variants[i].needs | agk_variants[i].gate) & ~agk_cpu_features()) == 0;
}

/* The place among the instruction sets of aarch64, the best one last; -1: none of them. */
static int rank(const char *isa)
{
    static const char *const names[] = {"scalar", "neon", "dotprod", "i8mm"};
    for (int i = 0; i < 4; ++i) {
        if (strcmp(names[i], isa) == 0) return i;
    }
    return -1;
}

/* Whether kernels.def has a line for the kernel, besides plain C, that needs no features beyond `cpu`. */
static bool has_line(const char *kernel, uint32_t cpu)
{
    for (size_t i = 0; i < agk_n_variants; ++i) {
        const agk_variant *v = &agk_variants[i];
        const bool best = ((v->needs | v->gate) & ~cpu) == 0 && strcmp(v->kernel, kernel) == 0;
        if (best && strcmp(v->isa, "scalar") != 0) return true;
    }
    return false;
}

static bool has_line_of(const char *prefix, int type, uint32_t cpu)
{
    char name[64];
    snprintf(name, sizeof name, "%s%s", prefix, agk_traits(type)->name);
    for (char *c = name; *c != '\0'; ++c) *c = (char)tolower((unsigned char)*c);
    return has_line(name, cpu);
}

/* Some schemes have a kernel for each type. The lines of kernels.def must be their only gate: with the features that
 * any line needs, a scheme serves exactly the types that have a line. So a new line takes effect at once. */
static void check_gates(uint32_t cpu)
{
    for (int type = 0; type < AGK_TYPE_COUNT; ++type) {
        if (agk_traits(type)->blck_size <= 1 || agk_traits(type)->name == NULL) continue;
        const agk_mm_problem p = {
            .a = type, .b = AGK_F32, .m = 64, .n = 1, .k = 256, .batches = 1, .weights = true, .cpu = cpu};
        CHECK(agk_mm_dots_q8.serves(&p) == has_line_of("mm_dots_", type, cpu));
        CHECK(agk_mm_packed_lanes.serves(&p) == has_line_of("mm_packed_", type, cpu));
        CHECK(agk_mm_packed_tiles.serves(&p) == has_line_of("mm_packed_tiles_", type, cpu));
        CHECK(agk_mm_blocks_q8.serves(&p) == has_line_of("mm_blocks_rows_", type, cpu));
        const bool codes = agk_code_traits_of(type).served;
        CHECK(agk_mm_bytes.serves(&p) == (codes && has_line("mm_bytes_product", cpu)));
        CHECK(agk_mm_shorts.serves(&p) == (codes && has_line("mm_shorts_product", cpu)));
        CHECK(agk_mm_tiles.serves(&p) == has_line("mm_tiles_product", cpu));
    }
}

static void expect_of(const agk_mm_problem *p, const char *name)
{
    const char *found = agk_mm_prefer(p, NULL)->scheme->name;
    if (strcmp(found, name) == 0) return;
    fprintf(stderr, "%s %lld x %lld x %lld with cpu %#x: %s, not %s\n", agk_traits(p->a)->name, (long long)p->m,
            (long long)p->n, (long long)p->k, p->cpu, found, name);
    CHECK(false);
}

/* Checks the scheme that is chosen for a type, rows, columns, k, and whether a is in a buffer of weights. */
static void expect(uint32_t cpu, int type, int64_t m, int64_t n, int64_t k, bool weights, const char *name)
{
    const agk_mm_problem p = {
        .a = type, .b = AGK_F32, .m = m, .n = n, .k = k, .batches = 1, .weights = weights, .cpu = cpu};
    expect_of(&p, name);
}

/* The same for weights of q8_0, by what comes before and after. */
static void expect_ended(uint32_t cpu, int64_t n, int64_t k, bool ends, bool panels, const char *name)
{
    const agk_mm_problem p = {.a = AGK_Q8_0,
                              .b = AGK_F32,
                              .m = 64,
                              .n = n,
                              .k = k,
                              .batches = 1,
                              .weights = true,
                              .cpu = cpu,
                              .ends = ends,
                              .panels = panels};
    expect_of(&p, name);
}

static void check_floats_on_amd(void)
{
    const uint32_t avx512 = AGK_AVX2 | AGK_FMA | AGK_F16C | AGK_AVX512, amd = avx512 | AGK_AVX512_BF16 | AGK_FAST_BF16;
    const uint32_t zen4 = amd | AGK_AMD512 | AGK_ZMM_HALVES, zen5 = amd | AGK_AMD512 | AGK_ZEN5;
    if (!has_line("mm_floats_product", avx512)) return;
    expect(zen4, AGK_F32, 64, 12, 256, true, "dots_f32");
    expect(zen4, AGK_F32, 64, 13, 256, true, "blocks_f32"); /* all of k at a time */
    expect(zen4, AGK_F32, 64, 128, 256, true, "blocks_f32");
    expect(zen4, AGK_F32, 64, 129, 256, true, "floats");
    expect(zen4, AGK_F16, 64, 16, 256, true, "dots_f32");
    expect(zen4, AGK_F16, 64, 48, 256, true, "blocks_f32");
    expect(zen4, AGK_F16, 64, 49, 256, true, "floats");
    expect(zen5, AGK_F32, 64, 16, 256, true, "dots_f32");
    expect(zen5, AGK_F32, 64, 32, 256, true, "floats");
}

static void check_schemes(void)
{
    const uint32_t avx2 = AGK_AVX2 | AGK_FMA | AGK_F16C, avx512 = avx2 | AGK_AVX512 | AGK_AVX512_VNNI | AGK_AVX512_BF16;
    const uint32_t amd = avx512 | AGK_FAST_BF16, amx = avx512 | AGK_AMX_BF16 | AGK_AMX_INT8;
    const uint32_t zen4 = amd | AGK_AMD512 | AGK_ZMM_HALVES, zen5 = amd | AGK_AMD512 | AGK_ZEN5;
    expect(0, AGK_Q4_K, 64, 1, 256, true, "dots_f32");
    expect(0, AGK_Q4_K, 64, 512, 256, true, "blocks_f32");
    if (has_line("mm_shorts_product", avx2)) {
        expect(avx2, AGK_Q4_K, 64, 1, 256, true, "packed_lanes");
        expect(avx2, AGK_Q4_K, 64, 1, 256, false, "dots_q8");
        expect(avx2, AGK_IQ2_XS, 64, 8, 256, true, "packed_lanes");
        expect(avx2, AGK_IQ2_XS, 64, 8, 256, false, "dots_q8");
        expect(avx2, AGK_Q4_K, 64, 9, 256, false, "shorts");
        expect(avx2, AGK_Q4_K, 64, 48, 256, true, "packed_lanes");
        expect(avx2, AGK_Q4_K, 64, 49, 256, true, "shorts");
        expect(avx2, AGK_F32, 64, 191, 256, false, "blocks_f32");
        expect(avx2, AGK_F32, 64, 192, 256, false, "floats");
        expect(avx2, AGK_F16, 64, 192, 256, false, "floats");
        expect(avx2, AGK_BF16, 64, 512, 256, false, "floats");
        expect(avx2, AGK_BF16, 64, 2, 256, true, "dots_f32");
        expect(avx2, AGK_BF16, 64, 3, 256, true, "packed_pairs");
        expect(avx2, AGK_BF16, 64, 48, 256, true, "packed_pairs");
        expect(avx2, AGK_BF16, 64, 49, 256, true, "blocks_f32");
        expect(avx2, AGK_BF16, 64, 8, 256, false, "dots_f32");
        expect(avx2, AGK_BF16, 15, 512, 256, false, "blocks_f32"); /* no panel has so few rows */
    }
    if (has_line("mm_bytes_product", avx512)) {
        expect(avx512, AGK_Q8_0, 64, 16, 256, true, "packed_lanes");
        expect(avx512, AGK_Q8_0, 64, 16, 256, false, "blocks_q8");
        expect(avx512, AGK_Q8_0, 64, 80, 256, true, "packed_lanes");
        expect(avx512, AGK_Q8_0, 64, 81, 256, true, "bytes");
        expect(avx512, AGK_Q6_K, 64, 40, 256, true, "packed_lanes");
        expect(avx512, AGK_Q6_K, 64, 41, 256, true, "bytes");
        expect(avx512, AGK_Q6_K, 15, 32, 256, true, "blocks_f32"); /* panels need more rows */
        expect(zen4, AGK_Q8_0, 64, 160, 256, true, "packed_lanes");
        expect(zen4, AGK_Q8_0, 64, 161, 256, true, "packed_lanes");
        expect(zen4, AGK_Q8_0, 64, 512, 8192, true, "packed_lanes"); /* as far as packed columns stay in the caches */
        expect(zen4, AGK_Q8_0, 64, 513, 8192, true, "bytes");
        expect_ended(zen4, 160, 256, true, false, "packed_lanes");
        expect_ended(zen4, 161, 256, true, false, "bytes");
        expect_ended(zen4, 161, 512, true, false, "packed_lanes");
        expect_ended(zen4, 161, 512, false, true, "bytes");
        expect(zen4, AGK_Q6_K, 64, 96, 256, true, "packed_lanes");
        expect(zen4, AGK_Q6_K, 64, 97, 256, true, "bytes");
        expect(zen4, AGK_Q3_K, 64, 48, 256, true, "packed_lanes");
        expect(zen4, AGK_Q3_K, 64, 49, 256, true, "bytes");
        expect(zen5, AGK_Q8_0, 64, 81, 256, true, "bytes");
        expect(avx512, AGK_F16, 64, 32, 256, false, "floats");
        expect(avx512, AGK_BF16, 64, 32, 256, false, "floats");
        expect(avx512, AGK_BF16, 64, 8, 256, false, "dots_bf16");
        expect(avx512, AGK_BF16, 64, 8, 32, false, "blocks_bf16");
        expect(amd, AGK_BF16, 64, 32, 256, false, "pairs");
        expect(amd, AGK_BF16, 64, 8, 256, true, "dots_bf16"); /* the gate of the packed kernel needs AGK_AMD512 */
        expect(amd, AGK_F32, 64, 32, 256, false, "floats");
    }
    if (has_line("mm_tiles_product", amx)) {
        expect(amx, AGK_Q4_0, 64, 6, 256, true, "packed_lanes");
        expect(amx, AGK_Q4_0, 64, 7, 256, true, "packed_tiles");
        expect(amx, AGK_Q6_K, 64, 8, 256, true, "packed_lanes"); /* this type has a scale for each 16 elements of k */
        expect(amx, AGK_Q6_K, 64, 9, 256, true, "packed_tiles");
        expect(amx, AGK_Q4_0, 64, 32, 256, true, "tiles");
        expect(amx, AGK_F32, 64, 32, 256, true, "tiles");
        expect(amx, AGK_BF16, 64, 4, 256, false, "dots_bf16");
        expect(amx, AGK_BF16, 64, 5, 256, false, "blocks_bf16");
    }
    const uint32_t neon = AGK_NEON | AGK_NEON_DOTPROD;
    if (has_line("mm_bytes_product", neon)) {
        expect(neon, AGK_Q4_0, 64, 1, 256, true, "packed_lanes");
        expect(neon, AGK_Q4_0, 64, 9, 256, false, "bytes");
        expect(neon, AGK_Q6_K, 64, 1, 256, false, "dots_f32");
        expect(AGK_NEON, AGK_Q4_0, 64, 32, 256, false, "floats");
    }
}

int main(void)
{
    const char *expected = getenv("AGK_EXPECT"), *best = "scalar";
    for (size_t i = 0; i < agk_n_variants; ++i) {
        agk_any_fn *chosen = agk_pick_any(agk_variants[i].kernel, agk_cpu_features());
        size_t first = 0;
        while (first < agk_n_variants &&
               (!runs(first) || strcmp(agk_variants[first].kernel, agk_variants[i].kernel) != 0)) {
            ++first;
        }
        CHECK(chosen ==
              (first < agk_n_variants ? agk_variants[first].fn : NULL)); /* NULL: attention in bf16 has no plain C */
        if (runs(i) && rank(agk_variants[i].isa) > rank(best)) best = agk_variants[i].isa;
    }
    for (size_t i = 0; i < agk_n_variants; ++i) check_gates(agk_variants[i].needs);
    check_gates(agk_cpu_features());
    check_schemes();
    check_floats_on_amd();
    if (expected != NULL && strcmp(best, expected) != 0) {
        fprintf(stderr, "the best kernels are those of %s, not of %s\n", best, expected);
        return 1;
    }
    return 0;
}
