// Tiles in shared memory: asynchronous copies to it (cp.async, from sm_80 on), and loads of 8 x 8 matrices from it
// (ldmatrix), as fragments of mma.cuh. Not here: the kernels that compute with them (flash_tiles.cuh).
#pragma once
#include "common.cuh"

// An address in shared memory: converted once, then advanced by addition.
#ifdef AGGML_HOST
typedef char *Place;
DEV Place place_of(void *p)
{
    return (char *)p;
}
#else
typedef u32 Place;
DEV u32 shared_address(const void *p)
{
    u32 address;
    asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(address) : "l"(p));
    return address;
}
DEV Place place_of(void *p)
{
    return shared_address(p);
}
#endif

// Loads four matrices of 8 x 8 elements of 16 bits. Lane l passes the address of row l % 8 of matrix l / 8 (16 bytes,
// aligned). It gets two neighbours of each matrix: row l / 4, columns 2 (l % 4) and the next. If TURNED it gets column
// l / 4, rows 2 (l % 4) and the next.
template <bool TURNED> DEV void load_matrices(u32 r[4], const u32 *row)
{
#ifdef AGGML_HOST
    shim_ldmatrix<TURNED>(r, row);
#else
    if (TURNED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(shared_address(row))
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(shared_address(row))
                     : "memory");
    }
#endif
}

// Starts to copy 16 bytes to shared memory; wait_for_copies waits for them. If they are not wanted, stores zeros and
// does not read the source. On sm_75 the copy is synchronous.
DEV void copy_async_to(Place to, const void *from, bool wanted)
{
#ifdef AGGML_HOST
    shim_copy_async(to, from, wanted);
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
                 "r"(wanted ? 16 : 0)
                 : "memory");
#else
    const uint4 x = wanted ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
#endif
}

DEV void copy_async(void *to, const void *from, bool wanted)
{
    copy_async_to(place_of(to), from, wanted);
}

// The copies that this thread started since the last call become one group.
DEV void commit_copies()
{
#ifdef AGGML_HOST
    shim_commit_copies();
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until all groups of this thread but the last LEFT have arrived; other threads see them after a barrier.
template <int LEFT> DEV void wait_for_copies()
{
#ifdef AGGML_HOST
    shim_wait_for_copies(LEFT);
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}
