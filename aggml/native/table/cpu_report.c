/* The features that ggml's ggml_cpu_has_* functions name: for each, whether this machine has it, and whether the plain
 * files (those without compiler flags of their own) were compiled with it.
 *
 * Not here: the features by which kernels are chosen (cpu_features.c); what the files of an instruction set were
 * compiled with, which the list of variants tells. */
#include "kernels.h"

#if defined(__linux__) && !defined(__x86_64__) && !defined(__i386__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif
#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
#include <cpuid.h>
#define HAS_CPUID 1
#endif

#define FACT(name, usable, base) {name, (int)(usable), base}

#ifdef __SSE3__
#define BASE_SSE3 1
#else
#define BASE_SSE3 0
#endif
#ifdef __SSSE3__
#define BASE_SSSE3 1
#else
#define BASE_SSSE3 0
#endif
#ifdef __ARM_NEON
#define BASE_NEON 1
#else
#define BASE_NEON 0
#endif
#ifdef __ARM_FEATURE_FMA
#define BASE_ARM_FMA 1
#else
#define BASE_ARM_FMA 0
#endif
#ifdef __VSX__
#define BASE_VSX 1
#else
#define BASE_VSX 0
#endif
#ifdef __wasm_simd128__
#define BASE_WASM_SIMD 1
#else
#define BASE_WASM_SIMD 0
#endif

typedef struct machine {
    bool sse3, ssse3, avx, bmi2;
    bool fp16_va, sve, sme, sme2;
    int sve_cnt, rvv_vlen;
    bool riscv_v, vsx, vxe;
} machine;

#ifdef HAS_CPUID
static machine look(void)
{
    machine m = {0};
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return m;
    m.sse3 = (c & 1u) != 0;
    m.ssse3 = (c >> 9 & 1u) != 0;
    unsigned state = 0, high;
    if ((c >> 27 & 1u) != 0) __asm__ volatile("xgetbv" : "=a"(state), "=d"(high) : "c"(0));
    m.avx = (c >> 28 & 1u) != 0 && (state & 0x6u) == 0x6u;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) m.bmi2 = (b >> 8 & 1u) != 0;
    return m;
}
#elif defined(__linux__)
static machine look(void)
{
    machine m = {0};
    /* bits of asm/hwcap.h, given as numbers because older headers lack the newer names */
    const unsigned long have = getauxval(AT_HWCAP);
#if defined(__aarch64__)
    const unsigned long more = getauxval(AT_HWCAP2);
    m.fp16_va = (have >> 10 & 1u) != 0;
    m.sve = (have >> 22 & 1u) != 0;
    m.sme = (more >> 23 & 1u) != 0;
    m.sme2 = (more >> 37 & 1u) != 0;
    if (m.sve) {
        int length = prctl(51 /* PR_SVE_GET_VL */);
        m.sve_cnt = length < 0 ? 0 : length & 0xffff;
    }
#elif defined(__riscv)
    m.riscv_v = (have >> ('V' - 'A') & 1u) != 0;
    if (m.riscv_v) {
        unsigned long bytes;
        __asm__ volatile("csrr %0, 0xc22" : "=r"(bytes)); /* vlenb */
        m.rvv_vlen = (int)bytes;
    }
#elif defined(__powerpc__)
    m.vsx = (have & 0x80u) != 0;
#elif defined(__s390x__)
    m.vxe = (have >> 13 & 1u) != 0;
#else
    (void)have;
#endif
    return m;
}
#else
static machine look(void)
{
    return (machine){0};
}
#endif

size_t agk_cpu_report(agk_cpu_fact *out, size_t room)
{
    const uint32_t cpu = agk_cpu_features();
    const machine m = look();
    const agk_cpu_fact facts[] = {
        FACT("sse3", m.sse3, BASE_SSE3),
        FACT("ssse3", m.ssse3, BASE_SSSE3),
        FACT("avx", m.avx, 0),
        FACT("bmi2", m.bmi2, 0),
        FACT("arm_fma", (cpu & AGK_NEON) != 0, BASE_ARM_FMA),
        FACT("fp16_va", m.fp16_va, 0),
        FACT("sve", m.sve, 0),
        FACT("sve_cnt", m.sve_cnt, 0),
        FACT("sme", m.sme, 0),
        FACT("sme2", m.sme2, 0),
        FACT("riscv_v", m.riscv_v, 0),
        FACT("rvv_vlen", m.rvv_vlen, 0),
        FACT("vsx", m.vsx, BASE_VSX),
        FACT("vxe", m.vxe, 0),
        FACT("wasm_simd", BASE_WASM_SIMD, BASE_WASM_SIMD),
    };
    const size_t n = sizeof facts / sizeof facts[0];
    size_t count = 0;
    for (size_t i = 0; i < n && count < room; ++i) out[count++] = facts[i];
    for (size_t i = 0; i < agk_n_features && count < room; ++i) {
        const agk_feature *f = &agk_features[i];
        if (strcmp(f->ggml, "NONE") == 0) continue;
        out[count++] = (agk_cpu_fact){f->ggml, (cpu & f->bit) != 0, f->bit == AGK_NEON ? BASE_NEON : 0};
    }
    return count;
}
