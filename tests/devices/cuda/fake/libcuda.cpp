// A libcuda.so.1 that runs on the CPU: unmodified cuda.bindings and cuda.core take it for the driver.
//
// Streams are threads; memory is tracked, and overwritten when new or freed. A "cubin" is the text FAKE:<kernels>
// newline <shim>: a library of kernels for the host, and the one that runs them for a grid. fake_*: for tests. It
// blocks where the real driver blocks and refuses what that refuses, as listed below.

// Addresses of device memory cannot be touched by the host: the bytes lie elsewhere (fake_host). New memory is 0xff, a
// NaN, freed memory 0xdd. A full launch queue blocks the caller, pageable copies wait for the stream, capture forbids
// calls that synchronise and the first launch of a kernel, which loads it. A block has 48 KiB of shared memory unless
// its kernel was given more, and no more threads than its kernel has registers for. A pool keeps what was freed; pinned
// memory is limited. After an asynchronous error every call answers with it. Environment: FAKE_CUDA_DEVICES (1), _CC
// (90), _VERSION (13000), _MEMORY (1 GiB), _PINNED (2 GiB), _QUEUE (1024), _JITTER_US (0), _SEED (1).
//
// Here: how cuda.bindings finds the entries. They lie in the headers, by subject: one file is compiled.
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
    // One name, another signature since that version.
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
