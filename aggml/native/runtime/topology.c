/* Banks of memory and their processors: read from the system once, or simulated for a test.
 *
 * Not here: which worker belongs to which bank (threadpool.c), which thread claims what (plan_run.c), how fast
 * each core is (cores.c). */
#define _GNU_SOURCE
#include "topology.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#define PAGE 4096
#define NODES 64

static struct {
    int banks, cores; /* of all banks together */
    int node[AG_MAX_BANKS];
    int8_t bank_of[AG_CPUS]; /* -1: not usable */
} machine = {.banks = 1, .cores = 1};
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_int pretended_cores, pretended_banks;

int ag_cpu_list(const char *path, bool cpus[AG_CPUS])
{
    int first, last, n = 0;
    FILE *file = fopen(path, "r");
    if (file == NULL) return -1;
    while (fscanf(file, "%d", &first) == 1) {
        last = first;
        int c = fgetc(file);
        if (c == '-' && fscanf(file, "%d", &last) == 1) c = fgetc(file);
        for (int cpu = first; cpu >= 0 && cpu <= last && cpu < AG_CPUS; ++cpu, ++n) cpus[cpu] = true;
        if (c != ',') break;
    }
    fclose(file);
    return n;
}

#ifdef __linux__
static void look(void)
{
    cpu_set_t usable;
    for (int i = 0; i < AG_CPUS; ++i) machine.bank_of[i] = -1;
    if (sched_getaffinity(0, sizeof usable, &usable) != 0) return;
    int banks = 0, cores = 0;
    for (int node = 0; node < NODES; ++node) {
        char path[64];
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
        bool here[AG_CPUS] = {false};
        if (ag_cpu_list(path, here) < 0) continue;
        const int bank = banks < AG_MAX_BANKS ? banks : node % AG_MAX_BANKS;
        int n = 0;
        for (int cpu = 0; cpu < AG_CPUS; ++cpu) {
            if (!here[cpu] || !CPU_ISSET((size_t)cpu, &usable)) continue;
            machine.bank_of[cpu] = (int8_t)bank;
            ++n;
        }
        if (n == 0) continue; /* it has only memory, or processors that this process may not use */
        if (bank == banks) machine.node[banks++] = node;
        cores += n;
    }
    if (banks == 0) return;
    machine.banks = banks;
    machine.cores = cores;
}
#else
static void look(void)
{
}
#endif

int ag_banks(void)
{
    const int pretended = atomic_load(&pretended_banks);
    if (pretended > 0) return pretended;
    pthread_once(&once, look);
    return machine.banks;
}

int ag_bank_cores(void)
{
    const int banks = ag_banks();
    const int cores = atomic_load(&pretended_banks) > 0 ? atomic_load(&pretended_cores) : machine.cores;
    return cores > banks ? cores / banks : 1;
}

bool ag_bank_has(int bank, int cpu)
{
    if (atomic_load(&pretended_banks) > 0) return true;
    pthread_once(&once, look);
    return cpu >= 0 && cpu < AG_CPUS && machine.bank_of[cpu] == bank;
}

void ag_bank_stay(int bank)
{
#ifdef __linux__
    cpu_set_t set;
    if (pthread_getaffinity_np(pthread_self(), sizeof set, &set) != 0) return;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET((size_t)cpu, &set) && !ag_bank_has(bank, cpu)) CPU_CLR((size_t)cpu, &set);
    }
    if (CPU_COUNT(&set) > 0) pthread_setaffinity_np(pthread_self(), sizeof set, &set);
#else
    (void)bank;
#endif
}

void ag_topology_pretend(int cores, int banks)
{
    atomic_store(&pretended_cores, cores);
    atomic_store(&pretended_banks, banks > AG_MAX_BANKS ? AG_MAX_BANKS : banks);
}

size_t ag_place_part(size_t size, int bank, int banks)
{
    const size_t pages = (size + PAGE - 1) / PAGE;
    return pages * (size_t)bank / (size_t)banks * PAGE;
}

int ag_place(void *data, size_t size)
{
    const int banks = ag_banks();
    if (banks < 2 || size < (size_t)banks * PAGE) return 0;
#if defined(__linux__) && defined(SYS_mbind)
    enum { PREFERRED = 1 };
    const uintptr_t begin = ((uintptr_t)data + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    for (int bank = 0; bank < banks && atomic_load(&pretended_banks) == 0; ++bank) {
        const size_t from = ag_place_part(size, bank, banks), to = ag_place_part(size, bank + 1, banks);
        const uintptr_t end = (uintptr_t)data + to;
        const unsigned long mask = 1ul << machine.node[bank];
        if (begin + from >= end) continue;
        /* If refused, pages lie next to the thread that touches them first, which is nearly the same. */
        syscall(SYS_mbind, begin + from, (end - begin - from) & ~(size_t)(PAGE - 1), PREFERRED, &mask, NODES + 1, 0);
    }
#endif
    return banks;
}
