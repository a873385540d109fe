// A libcuda.so.1 that runs on the CPU: unmodified cuda.bindings and cuda.core take it for the driver.
//
// Streams are threads. Memory is tracked, and overwritten when it is new or freed. A "cubin" is the text FAKE:<kernels>
// newline <shim>: the paths of a library of kernels for the host, and of the one that runs them for a grid. Functions
// fake_* are for tests. It blocks where the real driver blocks, and refuses what the real driver refuses, as follows.

// Addresses of device memory cannot be used by the host: the bytes are elsewhere (fake_host). New memory is 0xff, a
// NaN, freed memory is 0xdd. A full launch queue blocks the caller. Pageable copies wait for the stream. A capture
// forbids calls that synchronise, and the first launch of a kernel, which loads it. A block has 48 KiB of shared memory
// unless more was requested for its kernel, and no more threads than its kernel has registers for. A pool keeps freed
// memory. Pinned memory is limited. After an asynchronous error every call returns it. Environment: FAKE_CUDA_DEVICES
// (1), _CC (90), _VERSION (13000), _MEMORY (1 GiB), _PINNED (2 GiB), _QUEUE (1024), _JITTER_US (0), _SEED (1).
//
// Here: how cuda.bindings finds the entries. The entries are in the headers, by subject; this is the one file to
// compile.
#include "allocating.h"
#include "control.h"
#include "copying.h"
#include "devices.h"
#include "graphs.h"
#include "kernels.h"
#include "streams.h"

static int unsupported()
{
    return NOT_SUPPORTED;
}
EXPORT int cuGetProcAddress_v2(const char *name, void **p, int version, uint64_t, int *status)
{
    static void *me = [] {
        Dl_info info;
        dladdr(reinterpret_cast<void *>(&cuInit), &info);
        return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }();
    // entries whose signature has changed since this version, under the same name
    static const std::map<std::string, int> changed = {{"cuCtxGetDevice", 13000},
                                                       {"cuStreamGetCtx", 12050},
                                                       {"cuEventElapsedTime", 12080},
                                                       {"cuGetProcAddress", 12000}};
    auto since = changed.find(name);
    bool newer = since == changed.end() || version >= since->second;
    *p = nullptr;
    for (const char *suffix : {newer ? "_v2" : "", newer ? "" : "_v2", "_v3"}) {
        if (!*p) *p = dlsym(me, (std::string(name) + suffix).c_str());
    }
    if (!*p) *p = reinterpret_cast<void *>(&unsupported);
    if (status) *status = 0;
    return OK;
}
EXPORT int cuGetProcAddress(const char *name, void **p, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, p, version, flags, nullptr);
}
