/* Pretended machines of fast and slow cores: a folder with the files that Linux has there. */
#ifndef TEST_MACHINES_H
#define TEST_MACHINES_H

#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/cores.h"
#include "check.h"

static char root[128];

static inline void write_file(const char *text, const char *name, ...)
{
    char path[512];
    int n = snprintf(path, sizeof path, "%s/", root);
    va_list arguments;
    va_start(arguments, name);
    vsnprintf(path + n, sizeof path - (size_t)n, name, arguments);
    va_end(arguments);
    for (char *at = path + n; (at = strchr(at, '/')) != NULL; ++at) {
        *at = 0;
        mkdir(path, 0700);
        *at = '/';
    }
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    fputs(text, file);
    fclose(file);
}

static inline void begin_files(const char *usable)
{
    const char *folder = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/cores-XXXXXX", folder != NULL ? folder : "/tmp");
    CHECK(mkdtemp(root) != NULL);
    write_file(usable, "usable");
}

static inline void end_files(void)
{
    ag_cores_pretend(NULL);
    char remove_root[160];
    snprintf(remove_root, sizeof remove_root, "rm -r '%s'", root);
    CHECK_EQ(system(remove_root), 0); /* NOLINT */
}

static inline void capacity(int cpu, const char *text)
{
    write_file(text, "devices/system/cpu/cpu%d/cpu_capacity", cpu);
}

static inline void highest_clock(int cpu, const char *text)
{
    write_file(text, "devices/system/cpu/cpu%d/cpufreq/cpuinfo_max_freq", cpu);
}

/* Eight performance cores with two hyperthreads each, two of them with a higher clock, and sixteen efficiency cores. */
static inline void desktop(const char *usable)
{
    begin_files(usable);
    write_file("0-15\n", "devices/cpu_core/cpus");
    write_file("16-31\n", "devices/cpu_atom/cpus");
    for (int cpu = 0; cpu < 32; ++cpu) {
        char twins[32];
        const int first = cpu < 16 ? cpu / 2 * 2 : cpu;
        snprintf(twins, sizeof twins, "%d-%d\n", first, cpu < 16 ? first + 1 : first);
        write_file(twins, "devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
        highest_clock(cpu, cpu < 16 ? cpu / 4 == 2 ? "5800000\n" : "5500000\n" : "4300000\n");
        capacity(cpu, "1024\n"); /* as recent kernels say on chips with hyperthreads */
    }
}

/* Four small and four large cores. */
static inline void phone(const char *usable)
{
    begin_files(usable);
    for (int cpu = 0; cpu < 8; ++cpu) capacity(cpu, cpu < 4 ? "414\n" : cpu == 4 ? "1015\n" : "1024\n");
}

#endif
