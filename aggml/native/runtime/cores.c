/* How fast each core is: read once from what Linux tells every program, or from a test's copy of those files.
 *
 * Whether a chip is an Intel one of two kinds of cores is seen first: with hyperthreads its cores may all have the same
 * capacity. Then come capacities, which ARM systems tell. AMD's dense cores count as equal to the others: nothing
 * tells them apart everywhere, since equal cores differ in highest_perf and, on some kernels, in their highest clock.
 * Not here: which thread gets how many chunks (plan_claim.c), banks of memory (topology.c). */
#define _GNU_SOURCE
#include "cores.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"
#include "topology.h"

typedef struct machine {
    ag_core_kinds kinds;
    int cores, mean; /* usable cores, the mean of their speeds */
    bool differ;
    uint8_t speed[AG_CPUS]; /* 0: not usable */
    bool slow[AG_CPUS];     /* of an efficiency core */
    int16_t core[AG_CPUS];  /* the first hyperthread of its core */
    uint8_t twins[AG_CPUS]; /* by the first hyperthread of a core: how many of its hyperthreads are usable */
    int n_usable;
    int16_t usable[AG_CPUS];
} machine;

static machine found, simulated;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_bool pretended;

/* -- the files ------------------------------------------------------------------------------------------------ */

/* A number in a file of a hyperthread; 0: there is none. */
static long number_of(const char *root, int cpu, const char *name)
{
    char path[512];
    long number = 0;
    snprintf(path, sizeof path, "%s/devices/system/cpu/cpu%d/%s", root, cpu, name);
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    if (fscanf(file, "%ld", &number) != 1 || number < 0) number = 0;
    fclose(file);
    return number;
}

static bool list_of(const char *root, const char *name, bool cpus[AG_CPUS])
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    memset(cpus, 0, AG_CPUS * sizeof *cpus);
    return ag_cpu_list(path, cpus) > 0;
}

/* An efficiency core does half of the vector work of a performance core per clock: it has units of 128 bits where the
 * other has as many of 256 (Gracemont, Crestmont). So its speed is half of the quotient of the highest clocks. The
 * efficiency cores of 2024 (Skymont) have twice as many units and count as too slow. That is the smaller mistake: their
 * threads begin with too few chunks and then take some of others; the opposite mistake leaves a chunk to a slow thread
 * while all others wait. highest_perf of ACPI is not read: it counts instructions of ordinary programs, not vectors. */
static bool two_kinds(machine *m, const char *root)
{
    bool performance[AG_CPUS], efficiency[AG_CPUS];
    if (!list_of(root, "devices/cpu_core/cpus", performance)) return false;
    if (!list_of(root, "devices/cpu_atom/cpus", efficiency)) return false;
    long highest = 0;
    for (int cpu = 0; cpu < AG_CPUS; ++cpu) {
        if (performance[cpu] && efficiency[cpu]) return false;
        if (m->speed[cpu] > 0 && !performance[cpu] && !efficiency[cpu]) return false;
        const long clock = performance[cpu] ? number_of(root, cpu, "cpufreq/cpuinfo_max_freq") : 0;
        if (clock > highest) highest = clock;
    }
    for (int i = 0; i < m->n_usable; ++i) {
        const int cpu = m->usable[i];
        if (!efficiency[cpu]) continue;
        const long clock = number_of(root, cpu, "cpufreq/cpuinfo_max_freq");
        const double part = clock > 0 && clock < highest ? (double)clock / (double)highest : 1;
        m->speed[cpu] = (uint8_t)(AG_FULL_SPEED * part / 2 + 0.5);
        m->slow[cpu] = true;
    }
    return true;
}

/* The fastest core of a machine has a capacity of 1024, clock and instructions counted together. */
static bool capacities(machine *m, const char *root)
{
    enum { MOST = 1024, PERFORMANCE = AG_FULL_SPEED * 3 / 4 }; /* a core of less than that is an efficiency core */
    uint8_t speed[AG_CPUS];
    for (int i = 0; i < m->n_usable; ++i) {
        const long capacity = number_of(root, m->usable[i], "cpu_capacity");
        if (capacity <= 0 || capacity > MOST) return false;
        speed[i] = (uint8_t)((capacity * AG_FULL_SPEED + MOST / 2) / MOST);
    }
    for (int i = 0; i < m->n_usable; ++i) {
        m->speed[m->usable[i]] = speed[i];
        m->slow[m->usable[i]] = speed[i] < PERFORMANCE;
    }
    return true;
}

static void find_twins(machine *m, const char *root)
{
    for (int i = 0; i < m->n_usable; ++i) {
        const int cpu = m->usable[i];
        char name[80];
        bool twins[AG_CPUS];
        int first = 0;
        snprintf(name, sizeof name, "devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
        if (!list_of(root, name, twins) || !twins[cpu]) continue;
        while (!twins[first]) ++first;
        m->core[cpu] = (int16_t)first;
    }
}

static void look(machine *m, const char *root, const bool usable[AG_CPUS])
{
    enum { LEAST = AG_FULL_SPEED / 8 }; /* whatever a file says */
    memset(m, 0, sizeof *m);
    m->mean = AG_FULL_SPEED;
    for (int cpu = 0; cpu < AG_CPUS; ++cpu) {
        if (!usable[cpu]) continue;
        m->speed[cpu] = AG_FULL_SPEED;
        m->core[cpu] = (int16_t)cpu;
        m->usable[m->n_usable++] = (int16_t)cpu;
    }
    if (!two_kinds(m, root) && !capacities(m, root)) return;
    int sum = 0, slower = 0;
    for (int i = 0; i < m->n_usable; ++i) slower += m->speed[m->usable[i]] < AG_FULL_SPEED;
    if (slower == 0) return;
    find_twins(m, root);
    for (int i = 0; i < m->n_usable; ++i) {
        const int cpu = m->usable[i];
        if (m->speed[cpu] < LEAST) m->speed[cpu] = LEAST;
        m->differ = m->differ || m->speed[cpu] != m->speed[m->usable[0]];
        if (m->twins[m->core[cpu]]++ > 0) continue;
        sum += m->speed[cpu];
        ++m->cores;
        ++*(m->slow[cpu] ? &m->kinds.efficiency : &m->kinds.performance);
    }
    if (m->cores > 0) m->mean = sum / m->cores;
}

/* -- the machine ---------------------------------------------------------------------------------------------- */

/* What the process may use now; false: that is not known here. */
static bool may_use(bool usable[AG_CPUS])
{
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return false;
    for (int cpu = 0; cpu < AG_CPUS; ++cpu) usable[cpu] = CPU_ISSET((size_t)cpu, &set);
    return true;
#else
    (void)usable;
    return false;
#endif
}

static void look_here(void)
{
    bool usable[AG_CPUS] = {false};
    if (may_use(usable)) look(&found, "/sys", usable);
}

static const machine *this_machine(void)
{
    if (atomic_load(&pretended)) return &simulated;
    pthread_once(&once, look_here);
    return &found;
}

ag_core_kinds ag_cores(void)
{
    const ag_core_kinds kinds = this_machine()->kinds;
    return kinds.efficiency > 0 ? kinds : (ag_core_kinds){0, 0};
}

bool ag_cores_differ(void)
{
    return this_machine()->differ;
}

int ag_usable_cores(void)
{
    const machine *m = this_machine();
    return m->differ ? m->cores : 0;
}

int ag_usable_threads(void)
{
    bool usable[AG_CPUS] = {false};
    if (atomic_load(&pretended)) return simulated.n_usable;
    if (!may_use(usable)) return (int)sysconf(_SC_NPROCESSORS_ONLN);
    int n = 0;
    for (int cpu = 0; cpu < AG_CPUS; ++cpu) n += usable[cpu];
    return n;
}

int ag_core_speed(int cpu, int n_threads)
{
    const machine *m = this_machine();
    if (cpu < 0 || cpu >= AG_CPUS || m->speed[cpu] == 0) return m->mean;
    return n_threads > m->cores && m->twins[m->core[cpu]] > 1 ? m->speed[cpu] / 2 : m->speed[cpu];
}

bool ag_core_same(int cpu, int other)
{
    const machine *m = this_machine();
    if (cpu < 0 || cpu >= AG_CPUS || other < 0 || other >= AG_CPUS) return false;
    return m->speed[cpu] > 0 && m->speed[other] > 0 && m->core[cpu] == m->core[other];
}

int ag_core_here(int worker)
{
    if (!atomic_load(&pretended)) return ag_cpu_here();
    return worker < simulated.n_usable ? simulated.usable[worker] : -1;
}

void ag_cores_pretend(const char *root)
{
    bool usable[AG_CPUS];
    if (root != NULL) {
        list_of(root, "usable", usable);
        look(&simulated, root, usable);
    }
    atomic_store(&pretended, root != NULL);
}
