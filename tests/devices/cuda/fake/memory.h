// Blocks of memory and the places of their bytes. Not here: entries (allocating.h, copying.h).
#pragma once
#include "stream.h"

struct Pool {
    int device;
    std::atomic<uint64_t> peers{0}; // devices that may access it, a bit each
};
struct Block {
    size_t size;
    int device;             // -1: pinned host memory, -2: registered
    char *shadow = nullptr; // the real bytes of device memory; its address itself cannot be accessed
    Pool *pool = nullptr;
};
static std::mutex memory_lock;
static std::map<Ptr, Block> blocks;
static size_t used[16];
static size_t kept[16]; // bytes that the pools of each device hold: in use, or freed and not trimmed
static size_t pinned;   // bytes of host memory, allocated or registered
static const size_t POOL_UNIT = 2 << 20;

static size_t pages(size_t n, size_t page)
{
    return (n + page - 1) / page * page;
}

static bool pin(size_t n) // memory_lock must be held
{
    static size_t most = static_cast<size_t>(env("FAKE_CUDA_PINNED", 2l << 30));
    if (pinned + pages(n, 4096) > most) return false;
    pinned += pages(n, 4096);
    return true;
}

static bool find(Ptr p, size_t n, Block *out = nullptr)
{
    std::lock_guard<std::mutex> l(memory_lock);
    auto it = blocks.upper_bound(p);
    if (it == blocks.begin()) return false;
    --it;
    if (out) *out = it->second;
    return p >= it->first && p + n <= it->first + it->second.size;
}

static bool on_device(Ptr p, size_t n)
{
    Block b;
    if (find(p, n, &b) && b.device >= 0) return true;
    fprintf(stderr, "fake libcuda: %zu bytes at %#lx are outside of every allocation\n", n, static_cast<long>(p));
    count("wild");
    return false;
}

// The real place of an address: elsewhere for device memory, the address itself for all other memory.
EXPORT void *fake_host(Ptr p)
{
    std::lock_guard<std::mutex> l(memory_lock);
    auto it = blocks.upper_bound(p);
    if (it == blocks.begin()) return reinterpret_cast<void *>(p);
    --it;
    if (it->second.shadow && p < it->first + pages(it->second.size, 4096)) return it->second.shadow + (p - it->first);
    return reinterpret_cast<void *>(p);
}

static int allocate(Ptr *p, size_t n, int device, Pool *pool = nullptr)
{
    if (n == 0) return INVALID_VALUE;
    static size_t total = static_cast<size_t>(env("FAKE_CUDA_MEMORY", 1 << 30));
    {
        std::lock_guard<std::mutex> l(memory_lock);
        if (device >= 0 && used[device] + n > total) return OUT_OF_MEMORY;
        if (device < 0 && !pin(n)) return OUT_OF_MEMORY;
        if (device >= 0) used[device] += n;
        if (device >= 0) kept[device] = std::max(kept[device], std::min(total, pages(used[device], POOL_UNIT)));
    }
    size_t room = (n + 4095) / 4096 * 4096;
    void *m = aligned_alloc(4096, room);
    if (!m) return OUT_OF_MEMORY;
    memset(m, 0xff, room);
    *p = reinterpret_cast<Ptr>(m);
    char *shadow = nullptr;
    if (device >= 0) {
        shadow = static_cast<char *>(m);
        *p = reinterpret_cast<Ptr>(mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    }
    std::lock_guard<std::mutex> l(memory_lock);
    blocks[*p] = {n, device, shadow, pool};
    return OK;
}

static int release(Ptr p)
{
    char *shadow;
    size_t room;
    {
        std::lock_guard<std::mutex> l(memory_lock);
        auto it = blocks.find(p);
        if (it == blocks.end() || it->second.device == -2) {
            fprintf(stderr, "fake libcuda: free of %#lx, which is no allocation\n", static_cast<long>(p));
            ++counters["wild"];
            return INVALID_VALUE;
        }
        if (it->second.device >= 0) used[it->second.device] -= it->second.size;
        if (it->second.device < 0) pinned -= pages(it->second.size, 4096);
        shadow = it->second.shadow;
        room = (it->second.size + 4095) / 4096 * 4096;
        memset(shadow ? shadow : reinterpret_cast<void *>(p), 0xdd, it->second.size);
        blocks.erase(it);
    }
    if (shadow) munmap(reinterpret_cast<void *>(p), room);
    free(shadow ? shadow : reinterpret_cast<void *>(p));
    return OK;
}
