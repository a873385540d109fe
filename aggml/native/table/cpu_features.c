/* What this CPU can run and the operating system lets it: cpuid, and xgetbv for the register state; getauxval, sysctl.
 *
 * Not here: what a plan may use (the caller masks the result), the choice of variants (dispatch.c). */
#include <stdatomic.h>

#include "kernels.h"
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
#include <cpuid.h>

static bool has(unsigned reg, int bit)
{
    return (reg >> bit & 1u) != 0;
}

static bool intel(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(0, &a, &b, &c, &d) && b == 0x756e6547 && d == 0x49656e69; /* "Genu", "ineI" */
}

/* As an instruction, since the intrinsic would need its own compiler flag. */
static unsigned enabled_state(void)
{
    unsigned eax, edx;
    __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return eax;
}

/* Linux grants the 8 KB of tiles to a process that asks; its threads, also those there are, then have them. */
static bool may_use_tiles(void)
{
#if defined(__linux__) && defined(__x86_64__)
    enum { REQUEST = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return false;
#endif
}

static uint32_t detect(void)
{
    unsigned a, b, c, d, b7 = 0, c7 = 0, d7 = 0, a71 = 0, highest = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    const bool f16c = has(c, 29), fma = has(c, 12);
    if (!has(c, 27) || !has(c, 28)) return 0; /* no OSXSAVE or no AVX */
    const unsigned state = enabled_state();
    if ((state & 0x6u) != 0x6u) return 0; /* xmm and ymm are not saved */
    if (__get_cpuid_count(7, 0, &highest, &b7, &c7, &d7) && highest >= 1) {
        __get_cpuid_count(7, 1, &a71, &b, &c, &d);
    }
    uint32_t found = 0;
    if (has(b7, 5)) found |= AGK_AVX2;
    if (fma) found |= AGK_FMA;
    if (f16c) found |= AGK_F16C;
    if (has(a71, 4)) found |= AGK_AVX_VNNI;
    const bool zmm = (state & 0xe6u) == 0xe6u; /* opmask and both parts of zmm */
    if (zmm && has(b7, 16) && has(b7, 17) && has(b7, 28) && has(b7, 30) && has(b7, 31)) {
        found |= AGK_AVX512 | (intel() ? 0 : AGK_ZEN4); /* F, DQ, CD, BW, VL */
        if (has(c7, 1)) found |= AGK_AVX512_VBMI;
        if (has(c7, 11)) found |= AGK_AVX512_VNNI;
        if (has(a71, 5)) found |= AGK_AVX512_BF16 | (intel() ? 0 : AGK_FAST_BF16);
        if (has(d7, 24) && (state >> 17 & 3) == 3 && may_use_tiles()) {
            if (has(d7, 22)) found |= AGK_AMX_BF16;
            if (has(d7, 25)) found |= AGK_AMX_INT8;
        }
    }
    return found;
}
#elif defined(__aarch64__)
#ifdef __APPLE__
static bool apple_has(const char *name)
{
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value != 0;
}
#endif

static uint32_t detect(void)
{
    uint32_t found = AGK_NEON; /* part of the base architecture */
    bool dotprod = false, i8mm = false, bf16 = false;
#if defined(__linux__)
    /* bits of asm/hwcap.h; here as numbers, since older headers lack the newer names */
    const unsigned long have = getauxval(AT_HWCAP), more = getauxval(AT_HWCAP2);
    dotprod = (have >> 20 & 1u) != 0;
    i8mm = (more >> 13 & 1u) != 0;
    bf16 = (more >> 14 & 1u) != 0;
#elif defined(__APPLE__)
    dotprod = true; /* all of them have it */
    i8mm = apple_has("hw.optional.arm.FEAT_I8MM");
    bf16 = apple_has("hw.optional.arm.FEAT_BF16");
#endif
    if (dotprod) found |= AGK_NEON_DOTPROD | (i8mm ? AGK_NEON_I8MM : 0);
    if (bf16) found |= AGK_NEON_BF16;
    return found;
}
#else
static uint32_t detect(void)
{
    return 0;
}
#endif

uint32_t agk_cpu_features(void)
{
    static atomic_uint cache; /* bit 31: known; threads that come at once find the same */
    unsigned features = atomic_load_explicit(&cache, memory_order_relaxed);
    if (features == 0) {
        features = detect() | 1u << 31;
        atomic_store_explicit(&cache, features, memory_order_relaxed);
    }
    return features & ~(1u << 31);
}
