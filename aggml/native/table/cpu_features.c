/* What this CPU can run and the operating system allows. x86 reads cpuid, and xgetbv for the register state that the
 * system saves; ARM reads getauxval or sysctl.
 *
 * Here: reading those registers; isas.def says which of their bits make up a feature. Not here: which features a
 * plan may use (the caller masks the result), the choice of variants (dispatch.c). */
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

/* xgetbv written as an instruction, because the intrinsic would need its own compiler flag. */
static unsigned enabled_state(void)
{
    unsigned eax, edx;
    __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return eax;
}

/* Linux grants the 8 KB of tile state to a process that asks for it. The permission holds for all threads of the
 * process, including those that already run. */
static bool may_use_tiles(void)
{
#if defined(__linux__) && defined(__x86_64__)
    enum { REQUEST = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return false;
#endif
}

typedef struct machine {
    unsigned c1, b7, c7, d7, a71; /* registers of cpuid: c1 is ecx of leaf 1, b7 ebx of leaf 7, a71 eax of leaf 7.1 */
    unsigned family;
    bool intel, zmm, tiles; /* zmm: AVX-512 F, DQ, CD, BW and VL, whose registers the system saves */
} machine;

/* Reads the features into m. False: the system does not even save registers of 32 bytes. */
static bool look(machine *m)
{
    unsigned a, b, c, d, highest = 0;
    if (!__get_cpuid(1, &a, &b, &m->c1, &d)) return false;
    m->family = a >> 8 & 15;
    if (m->family == 15) m->family += a >> 20 & 255;
    if (!has(m->c1, 27) || !has(m->c1, 28)) return false; /* no OSXSAVE or no AVX */
    const unsigned state = enabled_state();
    if ((state & 0x6u) != 0x6u) return false; /* xmm and ymm */
    if (__get_cpuid_count(7, 0, &highest, &m->b7, &m->c7, &m->d7) && highest >= 1) {
        __get_cpuid_count(7, 1, &m->a71, &b, &c, &d);
    }
    m->intel = intel();
    m->zmm = (state & 0xe6u) == 0xe6u && /* opmask and both parts of zmm */
             has(m->b7, 16) && has(m->b7, 17) && has(m->b7, 28) && has(m->b7, 30) && has(m->b7, 31);
    m->tiles = m->zmm && has(m->d7, 24) && (state >> 17 & 3) == 3 && may_use_tiles();
    return true;
}

#define FOUND_X86(NAME, found) (found) ? AGK_##NAME : 0
#define FOUND_ARM(NAME, found) 0
#elif defined(__aarch64__)
#ifdef __APPLE__
static bool apple_has(const char *name)
{
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value != 0;
}
#endif

typedef struct machine {
    bool dotprod, i8mm, bf16;
} machine;

static bool look(machine *m)
{
#if defined(__linux__)
    /* bits of asm/hwcap.h, given as numbers because older headers lack the newer names */
    const unsigned long have = getauxval(AT_HWCAP), more = getauxval(AT_HWCAP2);
    m->dotprod = (have >> 20 & 1u) != 0;
    m->i8mm = (more >> 13 & 1u) != 0;
    m->bf16 = (more >> 14 & 1u) != 0;
#elif defined(__APPLE__)
    m->dotprod = true; /* all of these processors have it */
    m->i8mm = apple_has("hw.optional.arm.FEAT_I8MM");
    m->bf16 = apple_has("hw.optional.arm.FEAT_BF16");
#endif
    return true;
}

#define FOUND_X86(NAME, found) 0
#define FOUND_ARM(NAME, found) (found) ? AGK_##NAME : 0
#else
typedef struct machine {
    bool none;
} machine;

static bool look(machine *m)
{
    (void)m;
    return false;
}

#define FOUND_X86(NAME, found) 0
#define FOUND_ARM(NAME, found) 0
#endif

static uint32_t detect(void)
{
    machine m = {0};
    if (!look(&m)) return 0;
    const uint32_t each[] = {
#define AGK_FEATURE(NAME, bit, architecture, ggml, found) FOUND_##architecture(NAME, found),
#include "isas.def"
    };
    uint32_t all = 0;
    for (size_t i = 0; i < sizeof each / sizeof each[0]; ++i) all |= each[i];
    return all;
}

const agk_feature agk_features[] = {
#define AGK_FEATURE(NAME, bit, architecture, ggml, found) {#NAME, #ggml, AGK_##NAME},
#include "isas.def"
};
const size_t agk_n_features = sizeof agk_features / sizeof agk_features[0];

const agk_isa agk_isas[] = {
#define AGK_ISA(name, architecture, needs, gate, takes, flags) {#name, (needs) | (gate), takes},
#include "isas.def"
};
const size_t agk_n_isas = sizeof agk_isas / sizeof agk_isas[0];

uint32_t agk_cpu_features(void)
{
    /* bit 31: the features are known; threads that get here at the same time compute the same value */
    static atomic_uint cache;
    unsigned features = atomic_load_explicit(&cache, memory_order_relaxed);
    if (features == 0) {
        features = detect() | 1u << 31;
        atomic_store_explicit(&cache, features, memory_order_relaxed);
    }
    return features & ~(1u << 31);
}
