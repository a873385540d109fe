// Entries: memory, registered memory, pools.
#pragma once
#include "memory.h"

EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    ENTER("cuMemGetInfo");
    NEEDS_CONTEXT();
    *total = static_cast<size_t>(env("FAKE_CUDA_MEMORY", 1 << 30));
    std::lock_guard<std::mutex> l(memory_lock);
    *free_bytes = *total - kept[current->device]; // memory that a pool keeps is not free
    return OK;
}
EXPORT int cuMemAlloc_v2(Ptr *p, size_t n)
{
    ENTER("cuMemAlloc");
    NOT_WHILE_CAPTURING();
    NEEDS_CONTEXT();
    return allocate(p, n, current->device);
}
EXPORT int cuMemFree_v2(Ptr p)
{
    enter("cuMemFree");
    sync_all();
    return release(p);
}
EXPORT int cuMemAllocAsync(Ptr *p, size_t n, void *)
{
    ENTER("cuMemAllocAsync");
    NEEDS_CONTEXT();
    return allocate(p, n, current->device);
}
EXPORT int cuMemAllocFromPoolAsync(Ptr *p, size_t n, void *pool, void *)
{
    ENTER("cuMemAllocFromPoolAsync");
    NOT_WHILE_CAPTURING();
    return allocate(p, n, static_cast<Pool *>(pool)->device, static_cast<Pool *>(pool));
}
EXPORT int cuMemFreeAsync(Ptr p, void *s)
{
    ENTER("cuMemFreeAsync");
    return stream_of(s)->push(nullptr, [p] { release(p); });
}
EXPORT int cuMemHostAlloc(void **p, size_t n, unsigned)
{
    ENTER("cuMemHostAlloc");
    NOT_WHILE_CAPTURING();
    NEEDS_CONTEXT();
    return allocate(reinterpret_cast<Ptr *>(p), n, -1);
}
EXPORT int cuMemAllocHost_v2(void **p, size_t n)
{
    return cuMemHostAlloc(p, n, 0);
}
EXPORT int cuMemFreeHost(void *p)
{
    enter("cuMemFreeHost");
    sync_all();
    return release(reinterpret_cast<Ptr>(p));
}
EXPORT int cuMemHostRegister_v2(void *p, size_t n, unsigned flags)
{
    ENTER("cuMemHostRegister");
    if (flags & 8) count("read-only registrations");
    NOT_WHILE_CAPTURING();
    NEEDS_CONTEXT();
    Ptr at = reinterpret_cast<Ptr>(p);
    if (!n) return INVALID_VALUE;
    std::lock_guard<std::mutex> l(memory_lock);
    auto next = blocks.lower_bound(at);
    if (next != blocks.end() && next->first < at + n) return ALREADY_REGISTERED;
    if (next != blocks.begin() && std::prev(next)->first + std::prev(next)->second.size > at) return ALREADY_REGISTERED;
    if (!pin(n)) return OUT_OF_MEMORY;
    blocks[at] = {n, -2};
    return OK;
}
EXPORT int cuMemHostUnregister(void *p)
{
    enter("cuMemHostUnregister");
    sync_all();
    std::lock_guard<std::mutex> l(memory_lock);
    auto it = blocks.find(reinterpret_cast<Ptr>(p));
    if (it == blocks.end() || it->second.device != -2) return NOT_REGISTERED;
    pinned -= pages(it->second.size, 4096);
    blocks.erase(it);
    return OK;
}
EXPORT int cuPointerGetAttributes(unsigned n, const int *attributes, void **values, Ptr p)
{
    ENTER("cuPointerGetAttributes");
    Block b{0, 0};
    bool known = find(p, 1, &b);
    for (unsigned i = 0; i < n; ++i) {
        if (attributes[i] == 2) {
            *static_cast<unsigned *>(values[i]) = !known ? 0 : b.device >= 0 ? 2 : 1;
        } else if (attributes[i] == 9) {
            *static_cast<int *>(values[i]) = known && b.device >= 0 ? b.device : 0;
        } else if (attributes[i] == 1) {
            *static_cast<void **>(values[i]) = known ? &contexts[b.device >= 0 ? b.device : 0] : nullptr;
        } else {
            memset(values[i], 0, 4);
        }
    }
    return OK;
}
EXPORT int cuPointerGetAttribute(void *value, int attribute, Ptr p)
{
    return cuPointerGetAttributes(1, &attribute, &value, p);
}

struct Props {
    int kind, handles, location, id;
};
static Pool *pool_of(int device)
{
    static Pool *pools[16];
    if (!pools[device]) pools[device] = new Pool{device};
    return pools[device];
}
EXPORT int cuMemPoolCreate(void **pool, const Props *props)
{
    ENTER("cuMemPoolCreate");
    if (props->kind != 1 || props->location != 1 || props->id >= n_devices()) return INVALID_VALUE;
    *pool = new Pool{props->id};
    count("pools");
    return OK;
}
EXPORT int cuMemPoolDestroy(void *)
{
    ENTER("cuMemPoolDestroy");
    count("pools", -1); // the pool's memory stays, and stays counted, until it is freed
    return OK;
}
EXPORT int cuMemPoolSetAttribute(void *, int, void *)
{
    ENTER("cuMemPoolSetAttribute");
    return OK;
}
EXPORT int cuMemPoolGetAttribute(void *, int, void *value)
{
    memset(value, 0, 8);
    return OK;
}
struct Access {
    int kind, device, flags;
};
EXPORT int cuMemPoolSetAccess(void *pool, const Access *access, size_t n)
{
    ENTER("cuMemPoolSetAccess");
    auto *p = static_cast<Pool *>(pool);
    for (size_t i = 0; i < n; ++i) {
        if (access[i].kind != 1 || access[i].device >= n_devices()) return INVALID_DEVICE;
        if (access[i].device == p->device && access[i].flags == 0) return INVALID_VALUE;
        p->peers |= 1ull << access[i].device;
    }
    count("peer access");
    return OK;
}
EXPORT int cuMemPoolGetAccess(int *flags, void *, void *)
{
    *flags = 3;
    return OK;
}
EXPORT int cuMemPoolTrimTo(void *pool, size_t keep)
{
    ENTER("cuMemPoolTrimTo");
    int device = static_cast<Pool *>(pool)->device;
    std::lock_guard<std::mutex> l(memory_lock);
    kept[device] = std::min(kept[device], pages(std::max(keep, used[device]), POOL_UNIT));
    return OK;
}
EXPORT int cuDeviceGetDefaultMemPool(void **pool, int d)
{
    *pool = pool_of(d);
    return OK;
}
EXPORT int cuDeviceGetMemPool(void **pool, int d)
{
    *pool = pool_of(d);
    return OK;
}
EXPORT int cuMemGetMemPool(void **pool, void *, int)
{
    *pool = pool_of(0);
    return OK;
}
EXPORT int cuMemGetDefaultMemPool(void **pool, void *, int)
{
    *pool = pool_of(0);
    return OK;
}
