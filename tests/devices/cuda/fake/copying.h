// Entries: copies and fills.
#pragma once
#include "memory.h"

// Whether the range begins in registered or pinned memory and ends beyond it, which the driver refuses.
static bool straddles(Ptr p, size_t n)
{
    return n > 1 && find(p, 1) && !find(p, n);
}
// Before a copy with pageable host memory the caller waits for the stream, as in the real driver.
static int host_side(Stream *s, Ptr p, size_t n)
{
    if (find(p, n)) return OK;
    count("pageable");
    if (marked) count("pageable of the marked thread");
    s->sync();
    return OK;
}
EXPORT int cuMemcpyHtoDAsync_v2(Ptr d, const void *s, size_t n, void *stream)
{
    ENTER("cuMemcpyHtoDAsync");
    if (!on_device(d, n) || straddles(reinterpret_cast<Ptr>(s), n)) return INVALID_VALUE;
    Stream *to = stream_of(stream);
    bool pinned = find(reinterpret_cast<Ptr>(s), n);
    host_side(to, reinterpret_cast<Ptr>(s), n);
    to->push(nullptr, [=] { memcpy(fake_host(d), s, n); });
    if (!pinned) to->sync();
    return OK;
}
EXPORT int cuMemcpyDtoHAsync_v2(void *d, Ptr s, size_t n, void *stream)
{
    ENTER("cuMemcpyDtoHAsync");
    if (!on_device(s, n) || straddles(reinterpret_cast<Ptr>(d), n)) return INVALID_VALUE;
    Stream *to = stream_of(stream);
    bool pinned = find(reinterpret_cast<Ptr>(d), n);
    host_side(to, reinterpret_cast<Ptr>(d), n);
    to->push(nullptr, [=] { memcpy(d, fake_host(s), n); });
    if (!pinned) to->sync();
    return OK;
}
EXPORT int cuMemcpyDtoDAsync_v2(Ptr d, Ptr s, size_t n, void *stream)
{
    ENTER("cuMemcpyDtoDAsync");
    if (!on_device(d, n) || !on_device(s, n)) return INVALID_VALUE;
    if (d < s + n && s < d + n && d != s) count("overlapping copies"); // the result is undefined on a device
    return stream_of(stream)->push(nullptr, [=] { memcpy(fake_host(d), fake_host(s), n); });
}
EXPORT int cuMemcpyAsync(Ptr d, Ptr s, size_t n, void *stream)
{
    ENTER("cuMemcpyAsync");
    return stream_of(stream)->push(nullptr, [=] { memmove(fake_host(d), fake_host(s), n); });
}
EXPORT int cuMemcpyPeerAsync(Ptr d, void *dc, Ptr s, void *sc, size_t n, void *stream)
{
    ENTER("cuMemcpyPeerAsync");
    Block to, from;
    if (!find(d, n, &to) || !find(s, n, &from) || to.device != static_cast<Context *>(dc)->device ||
        from.device != static_cast<Context *>(sc)->device)
        return INVALID_VALUE;
    count("peer copies");
    auto open = [](const Block &b, int device) { return b.pool && (b.pool->peers >> device & 1); };
    if (open(to, from.device) && open(from, to.device)) count("direct peer copies"); // others go through host memory
    return stream_of(stream)->push(nullptr, [=] { memcpy(fake_host(d), fake_host(s), n); });
}
struct Copy2D {
    size_t src_x, src_y;
    int src_kind;
    const void *src_host;
    Ptr src_device;
    void *src_array;
    size_t src_pitch, dst_x, dst_y;
    int dst_kind;
    void *dst_host;
    Ptr dst_device;
    void *dst_array;
    size_t dst_pitch, width, height;
};
EXPORT int cuMemcpy2DAsync_v2(const Copy2D *given, void *stream)
{
    ENTER("cuMemcpy2DAsync");
    Copy2D c = *given;
    if (c.height == 0 || c.src_x + c.width > c.src_pitch || c.dst_x + c.width > c.dst_pitch) return INVALID_VALUE;
    if ((c.src_kind == 2 && c.src_pitch > INT32_MAX) || (c.dst_kind == 2 && c.dst_pitch > INT32_MAX))
        return INVALID_VALUE; // the limit CU_DEVICE_ATTRIBUTE_MAX_PITCH of the driver
    size_t src_n = (c.height - 1) * c.src_pitch + c.width, dst_n = (c.height - 1) * c.dst_pitch + c.width;
    Ptr src = c.src_kind == 1 ? reinterpret_cast<Ptr>(c.src_host) : c.src_device;
    Ptr dst = c.dst_kind == 1 ? reinterpret_cast<Ptr>(c.dst_host) : c.dst_device;
    Stream *s = stream_of(stream);
    if (c.src_kind == 2 && !on_device(src, src_n)) return INVALID_VALUE;
    if (c.dst_kind == 2 && !on_device(dst, dst_n)) return INVALID_VALUE;
    if (c.src_kind == 1) host_side(s, src, src_n);
    if (c.dst_kind == 1) host_side(s, dst, dst_n);
    return s->push(nullptr, [=] {
        for (size_t i = 0; i < c.height; ++i)
            memcpy(fake_host(dst + i * c.dst_pitch), fake_host(src + i * c.src_pitch), c.width);
    });
}
EXPORT int cuMemsetD8Async(Ptr d, unsigned char value, size_t n, void *stream)
{
    ENTER("cuMemsetD8Async");
    if (!on_device(d, n)) return INVALID_VALUE;
    return stream_of(stream)->push(&blocks, [=] { memset(fake_host(d), value, n); });
}
