// Runs the blocks of a grid one after the other, the threads of a block as fibers (shim.h).
//
// A barrier that not all threads reach, and any other misuse, ends the launch with a message; fibers that have not
// ended are dropped, since kernels own nothing. Between two barriers threads take turns in the given order, or in a new
// random order each time: if a barrier is missing, a thread then reads values that are not written yet. All shared
// memory is NaN when a block begins, and blocks can run in other orders, too.
#include "shim.h"

#include <link.h>
#include <stdio.h>
#include <sys/mman.h>

#include <mutex>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
enum { STACK = 512 * 1024 }; // large, because a sanitizer's report is written on the stack of the thread at fault
#else
enum { STACK = 64 * 1024 };
#endif

#if defined(__x86_64__)
asm(R"(
.text
.type shim_switch,@function
shim_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size shim_switch,.-shim_switch
)");
extern "C" void shim_switch(void **save, void *to);
#else
#include <ucontext.h>
#define SHIM_UCONTEXT
#endif

namespace {

enum State { READY, AT_BARRIER, AT_EXCHANGE, DONE };

// An asynchronous copy to shared memory that is not carried out yet.
struct Copy {
    void *to;
    const void *from;
    bool wanted;
    unsigned group;
};

struct Thread {
    State state;
    uint3 index;
    char *stack;
    void *sp;
    void *fake; // ASan's fake stack
    std::vector<Copy> copies;
    unsigned groups; // groups of copies so far
#ifdef SHIM_UCONTEXT
    ucontext_t context;
#endif
};

struct Warp {
    uint64_t slot[2][32];
    unsigned arrived, turn;
};

std::mutex one_at_a_time;
std::vector<Thread> threads;
std::vector<Warp> warps;
std::vector<char *> stacks;
char *shared;
unsigned n_threads, alive, waiting, current;
void (*kernel)(const void *);
const void *kernel_args;
void *scheduler_sp;
const char *failure;
char message[300];
#ifdef SHIM_UCONTEXT
ucontext_t scheduler_context;
#endif
#if defined(__SANITIZE_ADDRESS__)
const void *scheduler_stack;
size_t scheduler_size;
#endif

// The __shared__ variables of a library: its writable data without an initial value.
struct Range {
    char *begin, *end;
};

int find_shared(dl_phdr_info *info, size_t, void *result)
{
    bool here = false;
    Range found = {nullptr, nullptr};
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto &h = info->dlpi_phdr[i];
        char *at = (char *)info->dlpi_addr + h.p_vaddr;
        if (h.p_type != PT_LOAD) continue;
        here = here || ((char *)kernel >= at && (char *)kernel < at + h.p_memsz);
        if (h.p_flags & PF_W) found = {at + h.p_filesz, at + h.p_memsz};
    }
    if (here) *(Range *)result = found;
    return here;
}

// Not memset, which ASan would check: between the variables are its red zones.
__attribute__((no_sanitize("address", "undefined"))) void poison(Range range)
{
    for (volatile char *p = range.begin; p < range.end; ++p) *p = (char)0xff;
}

uint64_t seed;

unsigned draw(unsigned below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((seed >> 33) % below);
}

void shuffle(std::vector<unsigned> &list)
{
    for (unsigned i = (unsigned)list.size(); i > 1; --i) std::swap(list[i - 1], list[draw(i)]);
}

// Switches to the scheduler, until the thread is resumed.
void yield_thread(bool last)
{
    Thread &t = threads[current];
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(last ? nullptr : &t.fake, scheduler_stack, scheduler_size);
#endif
#ifdef SHIM_UCONTEXT
    swapcontext(&t.context, &scheduler_context);
#else
    shim_switch(&t.sp, scheduler_sp);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(t.fake, &scheduler_stack, &scheduler_size);
#endif
    (void)last;
}

void thread_main()
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_size);
#endif
    kernel(kernel_args);
    threads[current].state = DONE;
    yield_thread(true);
    __builtin_unreachable();
}

void start(Thread &t)
{
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(t.stack, STACK); // poisoned by a fiber that was dropped
#endif
    t.state = READY;
    t.fake = nullptr;
    t.copies.clear();
    t.groups = 0;
#ifdef SHIM_UCONTEXT
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack;
    t.context.uc_stack.ss_size = STACK;
    t.context.uc_link = nullptr;
    makecontext(&t.context, thread_main, 0);
#else
    void **sp = (void **)(t.stack + STACK - 24);
    *sp = nullptr; // thread_main expects a stack as after a call: 8 bytes off the alignment
    *--sp = (void *)thread_main;
    for (int i = 0; i < 6; ++i) *--sp = nullptr;
    t.sp = sp;
#endif
}

void resume(unsigned i)
{
    Thread &t = threads[i];
    current = i;
    shim_thread = t.index;
#if defined(__SANITIZE_ADDRESS__)
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, t.stack, STACK);
#endif
#ifdef SHIM_UCONTEXT
    swapcontext(&scheduler_context, &t.context);
#else
    shim_switch(&scheduler_sp, t.sp);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    if (t.state == DONE) --alive;
}

void run_block(int order)
{
    static std::vector<unsigned> turns;
    alive = n_threads;
    waiting = 0;
    turns.resize(n_threads);
    for (unsigned i = 0; i < n_threads; ++i) turns[i] = i;
    for (Warp &w : warps) w.arrived = 0;
    for (unsigned i = 0; i < n_threads; ++i) start(threads[i]);
    while (alive > 0 && failure == nullptr) {
        bool moved = false;
        if (order > 2) shuffle(turns);
        for (unsigned k = 0; k < n_threads && failure == nullptr; ++k) {
            // orders 0, 1, 2: rising, falling, or with a stride that is coprime to all numbers of threads in use
            const unsigned i = order == 1 ? n_threads - 1 - k : order == 2 ? (k * 7 + 3) % n_threads : turns[k];
            if (threads[i].state != READY) continue;
            resume(i);
            moved = true;
        }
        if (alive > 0 && waiting == alive) {
            waiting = 0;
            for (Thread &t : threads) {
                if (t.state == AT_BARRIER) t.state = READY;
            }
            moved = true;
        }
        if (!moved && failure == nullptr) {
            for (unsigned i = 0; i < n_threads; ++i) {
                if (threads[i].state == AT_BARRIER || threads[i].state == AT_EXCHANGE) current = i;
            }
            shim_thread = threads[current].index;
            failure = "waits where others never come";
        }
    }
}

} // namespace

extern "C" {

uint3 shim_thread, shim_block, shim_block_dim, shim_grid_dim;

void *shim_shared(void)
{
    return shared;
}

unsigned shim_lane(void)
{
    return current & 31;
}

void shim_fail(const char *what)
{
    failure = what;
    yield_thread(false);
}

void shim_barrier(void)
{
    threads[current].state = AT_BARRIER;
    ++waiting;
    yield_thread(false);
}

const uint64_t *shim_exchange(unsigned mask, uint64_t value)
{
    Warp &w = warps[current / 32];
    const unsigned turn = w.turn;
    if (mask != ~0u) shim_fail("syncs with a part of its warp");
    w.slot[turn][current & 31] = value;
    w.arrived |= 1u << (current & 31);
    if (w.arrived == ~0u) {
        w.arrived = 0;
        w.turn ^= 1;
        for (unsigned i = current / 32 * 32; i < n_threads && i < current / 32 * 32 + 32; ++i) threads[i].state = READY;
    } else {
        threads[current].state = AT_EXCHANGE;
        yield_thread(false);
    }
    return w.slot[turn];
}

__attribute__((visibility("default"))) void shim_copy_async(void *to, const void *from, bool wanted)
{
    if ((uintptr_t)to % 16 != 0 || (wanted && (uintptr_t)from % 16 != 0)) shim_fail("a copy that is not aligned");
    threads[current].copies.push_back({to, from, wanted, threads[current].groups});
}

__attribute__((visibility("default"))) void shim_commit_copies(void)
{
    ++threads[current].groups;
}

__attribute__((visibility("default"))) void shim_wait_for_copies(unsigned left)
{
    Thread &t = threads[current];
    std::vector<Copy> later;
    for (const Copy &c : t.copies) {
        if (c.group + left >= t.groups) {
            later.push_back(c);
        } else if (c.wanted) {
            memcpy(c.to, c.from, 16);
        } else {
            memset(c.to, 0, 16);
        }
    }
    t.copies.swap(later);
}

// How many threads of the last launch waited for the kernel before it.
__attribute__((visibility("default"))) uint64_t shim_waited;

__attribute__((visibility("default"))) void shim_wait(void)
{
    ++shim_waited;
}

// Returns NULL, or an error message. `order`, in which threads and blocks take turns: 0 rising, 1 falling, 2 across;
// from 3 on it is the seed of a random order.
__attribute__((visibility("default"))) const char *shim_launch(void (*fn)(const void *), const void *args,
                                                               const unsigned grid[3], const unsigned block[3],
                                                               unsigned shared_bytes, int order)
{
    std::lock_guard<std::mutex> guard(one_at_a_time);
    n_threads = block[0] * block[1] * block[2];
    if (n_threads == 0 || n_threads > 1024) return "a block of no, or more than 1024, threads";
    if (shared_bytes > 227 * 1024) return "more shared memory than any GPU has";
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[1] > 65535 || grid[2] > 65535 || grid[0] > 0x7fffffff)
        return "a grid that no GPU takes";
    kernel = fn;
    kernel_args = args;
    failure = nullptr;
    shim_waited = 0;
    while (stacks.size() < n_threads) {
        stacks.push_back((char *)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    }
    threads.assign(n_threads, Thread());
    warps.assign((n_threads + 31) / 32, Warp());
    shim_block_dim = {block[0], block[1], block[2]};
    shim_grid_dim = {grid[0], grid[1], grid[2]};
    for (unsigned i = 0; i < n_threads; ++i) {
        threads[i].stack = stacks[i];
        threads[i].index = {i % block[0], i / block[0] % block[1], i / block[0] / block[1]};
    }
    Range fixed = {nullptr, nullptr};
    dl_iterate_phdr(find_shared, &fixed);
    seed = (uint64_t)order;
    const uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    std::vector<unsigned> drawn;
    if (order > 2 && blocks < 1 << 20) {
        for (unsigned b = 0; b < blocks; ++b) drawn.push_back(b);
        shuffle(drawn);
    }
    for (uint64_t k = 0; k < blocks && failure == nullptr; ++k) {
        const uint64_t b = !drawn.empty() ? drawn[k] : order == 0 ? k : blocks - 1 - k;
        shim_block = {(unsigned)(b % grid[0]), (unsigned)(b / grid[0] % grid[1]), (unsigned)(b / grid[0] / grid[1])};
        shared = new (std::align_val_t(128)) char[shared_bytes];
        memset(shared, 0xff, shared_bytes); // NaN, so that reading unwritten memory shows
        poison(fixed);
        run_block(order);
        operator delete[](shared, std::align_val_t(128));
    }
    if (failure == nullptr) return nullptr;
    snprintf(message, sizeof message, "thread %u,%u,%u of block %u,%u,%u: %s", shim_thread.x, shim_thread.y,
             shim_thread.z, shim_block.x, shim_block.y, shim_block.z, failure);
    return message;
}
}
