/* Access of GPUs to each other's memory, so that copies between two GPUs need not go through the host.
 *
 * At first only its own GPU can access a pool. A copy may be issued on either side, so both pools are opened to the
 * other GPU, and so are the pools of every further device of the two GPUs. */
#include <stdlib.h>

#include "state.h"

static pthread_mutex_t *const lock = &ag_locks[AG_LOCK_CUDA];
static ag_cuda_device *all;

void ag_cuda_peers_add(ag_cuda_device *device)
{
    pthread_mutex_lock(lock);
    device->next = all;
    device->link = &all;
    if (all != NULL) all->link = &device->next;
    all = device;
    pthread_mutex_unlock(lock);
}

void ag_cuda_peers_remove(ag_cuda_device *device)
{
    pthread_mutex_lock(lock);
    *device->link = device->next;
    if (device->next != NULL) device->next->link = device->link;
    pthread_mutex_unlock(lock);
}

void ag_cuda_peers_forked(void)
{
    all = NULL;
}

/* A device that has a pool of `ordinal` which `peer` was not let to yet, with a reference; NULL: none is left. */
static ag_cuda_device *closed_to(int ordinal, int peer)
{
    ag_cuda_device *found = NULL;
    pthread_mutex_lock(lock);
    for (ag_cuda_device *d = all; d != NULL && found == NULL; d = d->next) {
        if (d->ordinal != ordinal || !atomic_load(&d->made) || (d->peers >> peer & 1) != 0) continue;
        int refs = atomic_load(&d->refs);
        while (refs > 0 && !atomic_compare_exchange_weak(&d->refs, &refs, refs + 1)) continue;
        if (refs == 0) continue; /* the device is about to be freed */
        d->peers |= UINT64_C(1) << peer;
        found = d;
    }
    pthread_mutex_unlock(lock);
    return found;
}

static void open_pools(int ordinal, int peer)
{
    ag_cu_access access = {.location = {.kind = AG_CU_LOCATION_DEVICE, .id = peer}, .flags = AG_CU_ACCESS_READ_WRITE};
    int can = 0;
    for (ag_cuda_device *d; (d = closed_to(ordinal, peer)) != NULL; ag_cuda_device_unref(d)) {
        if (ag_cu.cuDeviceCanAccessPeer(&can, peer, ordinal) != AG_CU_OK || !can) continue;
        (void)ag_cu.cuMemPoolSetAccess(d->pool, &access, 1); /* access refused: copies go through the host */
    }
}

void ag_cuda_reach(int one, int two)
{
    if (one == two || one < 0 || two < 0 || one >= 64 || two >= 64) return;
    open_pools(one, two);
    open_pools(two, one);
}
