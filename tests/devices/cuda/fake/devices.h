// Entries: devices, contexts, names of errors.
#pragma once
#include "memory.h"

EXPORT int cuInit(unsigned)
{
    ENTER("cuInit");
    return n_devices() ? OK : NO_DEVICE;
}
EXPORT int cuDriverGetVersion(int *v)
{
    *v = static_cast<int>(env("FAKE_CUDA_VERSION", 13000));
    return OK;
}
EXPORT int cuDeviceGetCount(int *n)
{
    ENTER("cuDeviceGetCount");
    *n = n_devices();
    return OK;
}
EXPORT int cuDeviceGet(int *d, int i)
{
    if (i < 0 || i >= n_devices()) return INVALID_DEVICE;
    *d = i;
    return OK;
}
EXPORT int cuDeviceGetName(char *s, int n, int d)
{
    snprintf(s, static_cast<size_t>(n), "Fake CUDA device %d", d);
    return OK;
}
EXPORT int cuDeviceGetUuid_v2(void *u, int d)
{
    memset(u, 0, 16);
    static_cast<char *>(u)[15] = static_cast<char>(d);
    return OK;
}
EXPORT int cuDeviceTotalMem_v2(size_t *n, int)
{
    ENTER("cuDeviceTotalMem");
    *n = static_cast<size_t>(env("FAKE_CUDA_MEMORY", 1 << 30));
    return OK;
}
EXPORT int cuDeviceGetPCIBusId(char *s, int n, int d)
{
    snprintf(s, static_cast<size_t>(n), "0000:%02X:00.0", d + 10);
    return OK;
}
EXPORT int cuDeviceGetAttribute(int *v, int attribute, int)
{
    int cc = static_cast<int>(env("FAKE_CUDA_CC", 90));
    static const std::map<int, int> known = {
        {1, 1024},  {2, 1024}, {3, 1024},    {4, 64},   {5, 2147483647}, {6, 65535}, {7, 65535},
        {8, 49152}, {10, 32},  {12, 65536},  {16, 132}, {38, 50 << 20},  {39, 2048}, {40, 3},
        {41, 1},    {78, 1},   {97, 232448}, {99, 1},   {115, 1},        {102, 1},   {11, INT32_MAX}, {113, 1},
    };
    auto found = known.find(attribute);
    *v = attribute == 75 ? cc / 10 : attribute == 76 ? cc % 10 : found == known.end() ? 0 : found->second;
    return OK;
}
EXPORT int cuDeviceCanAccessPeer(int *can, int a, int b)
{
    ENTER("cuDeviceCanAccessPeer");
    *can = a != b;
    return OK;
}
EXPORT int cuDevicePrimaryCtxRetain(void **c, int d)
{
    ENTER("cuDevicePrimaryCtxRetain");
    if (d < 0 || d >= n_devices()) return INVALID_DEVICE;
    *c = &contexts[d];
    return OK;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int)
{
    return OK;
}
EXPORT int cuDevicePrimaryCtxGetState(int, unsigned *flags, int *active)
{
    *flags = 0;
    *active = 1;
    return OK;
}
EXPORT int cuCtxGetCurrent(void **c)
{
    *c = current;
    return OK;
}
EXPORT int cuCtxSetCurrent(void *c)
{
    current = static_cast<Context *>(c);
    return OK;
}
EXPORT int cuCtxPushCurrent_v2(void *c)
{
    current = static_cast<Context *>(c);
    return OK;
}
EXPORT int cuCtxPopCurrent_v2(void **c)
{
    *c = current;
    return OK;
}
EXPORT int cuCtxGetDevice(int *d)
{
    NEEDS_CONTEXT();
    *d = current->device;
    return OK;
}
EXPORT int cuCtxGetDevice_v2(int *d, void *c)
{
    Context *x = c ? static_cast<Context *>(c) : current;
    if (!x) return INVALID_CONTEXT;
    *d = x->device;
    return OK;
}
EXPORT int cuCtxGetStreamPriorityRange(int *low, int *high)
{
    *low = 0;
    *high = -5;
    return OK;
}
EXPORT int cuCtxSynchronize()
{
    ENTER("cuCtxSynchronize");
    sync_all();
    return current ? sticky[current->device].load() : OK;
}

static const std::map<int, std::pair<const char *, const char *>> error_names = {
    {OK, {"CUDA_SUCCESS", "no error"}},
    {INVALID_VALUE, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
    {OUT_OF_MEMORY, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
    {NO_DEVICE, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
    {INVALID_IMAGE, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
    {NOT_FOUND, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
    {NOT_READY, {"CUDA_ERROR_NOT_READY", "device not ready"}},
    {ILLEGAL_ADDRESS, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
    {719, {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
    {NOT_SUPPORTED, {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"}},
    {CAPTURE_UNSUPPORTED, {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not permitted when stream is capturing"}},
};
EXPORT int cuGetErrorName(int code, const char **text)
{
    auto found = error_names.find(code);
    *text = found == error_names.end() ? "CUDA_ERROR_UNKNOWN" : found->second.first;
    return OK;
}
EXPORT int cuGetErrorString(int code, const char **text)
{
    auto found = error_names.find(code);
    *text = found == error_names.end() ? "unknown error" : found->second.second;
    return OK;
}
