// Entries: streams and events.
#pragma once
#include "memory.h"

EXPORT int cuStreamCreateWithPriority(void **s, unsigned, int priority)
{
    ENTER("cuStreamCreate");
    NEEDS_CONTEXT();
    auto *stream = new Stream(current->device, priority);
    std::lock_guard<std::mutex> l(streams_lock);
    streams().emplace_back(stream);
    *s = stream;
    return OK;
}
EXPORT int cuStreamCreate(void **s, unsigned flags)
{
    return cuStreamCreateWithPriority(s, flags, 0);
}
EXPORT int cuStreamDestroy_v2(void *s)
{
    enter("cuStreamDestroy");
    std::shared_ptr<Stream> stream;
    {
        std::lock_guard<std::mutex> l(streams_lock);
        auto &list = streams();
        auto found = std::find_if(list.begin(), list.end(), [&](auto &each) { return each.get() == s; });
        if (found == list.end()) return INVALID_HANDLE;
        stream = *found;
        list.erase(found);
    }
    stream->sync();
    return OK;
}
EXPORT int cuStreamSynchronize(void *s)
{
    ENTER("cuStreamSynchronize");
    NOT_WHILE_CAPTURING();
    stream_of(s)->sync();
    return sticky[stream_of(s)->device];
}
EXPORT int cuStreamQuery(void *s)
{
    ENTER("cuStreamQuery");
    return stream_of(s)->idle() ? OK : NOT_READY;
}
EXPORT int cuStreamGetCtx(void *s, void **c)
{
    *c = &contexts[stream_of(s)->device];
    return OK;
}
EXPORT int cuStreamGetCtx_v2(void *s, void **c, void **green)
{
    *green = nullptr;
    return cuStreamGetCtx(s, c);
}
EXPORT int cuStreamGetDevice(void *s, int *d)
{
    *d = stream_of(s)->device;
    return OK;
}
EXPORT int cuStreamGetPriority(void *s, int *p)
{
    *p = stream_of(s)->priority;
    return OK;
}
EXPORT int cuStreamGetFlags(void *, unsigned *flags)
{
    *flags = 1;
    return OK;
}
EXPORT int cuStreamIsCapturing(void *s, int *state)
{
    *state = stream_of(s)->capture != nullptr;
    return OK;
}
EXPORT int cuStreamGetCaptureInfo_v3(void *s, int *state, uint64_t *, void *, void *, void *, size_t *)
{
    return cuStreamIsCapturing(s, state);
}
EXPORT int cuStreamGetCaptureInfo_v2(void *s, int *state, uint64_t *, void *, void *, size_t *)
{
    return cuStreamIsCapturing(s, state);
}

struct Event {
    std::mutex m;
    std::condition_variable reached;
    uint64_t recorded = 0, done = 0;
    int device = 0;
    std::chrono::steady_clock::time_point at;
};
typedef std::shared_ptr<Event> EventRef;
static EventRef &event_of(void *e)
{
    return *static_cast<EventRef *>(e);
}
EXPORT int cuEventCreate(void **e, unsigned)
{
    ENTER("cuEventCreate");
    NEEDS_CONTEXT();
    auto *event = new EventRef(new Event);
    (*event)->device = current->device;
    count("events");
    *e = event;
    return OK;
}
EXPORT int cuEventDestroy_v2(void *e)
{
    enter("cuEventDestroy");
    count("events", -1);
    delete static_cast<EventRef *>(e);
    return OK;
}
EXPORT int cuEventRecord(void *e, void *s)
{
    ENTER("cuEventRecord");
    EventRef event = event_of(e);
    uint64_t ticket;
    {
        std::lock_guard<std::mutex> l(event->m);
        ticket = ++event->recorded;
    }
    return stream_of(s)->push(nullptr, [event, ticket] {
        std::lock_guard<std::mutex> l(event->m);
        event->done = std::max(event->done, ticket);
        event->at = std::chrono::steady_clock::now();
        event->reached.notify_all();
    });
}
EXPORT int cuEventRecordWithFlags(void *e, void *s, unsigned)
{
    return cuEventRecord(e, s);
}
EXPORT int cuEventQuery(void *e)
{
    ENTER("cuEventQuery");
    NOT_WHILE_CAPTURING();
    EventRef event = event_of(e);
    std::lock_guard<std::mutex> l(event->m);
    return event->done >= event->recorded ? OK : NOT_READY;
}
EXPORT int cuEventSynchronize(void *e)
{
    ENTER("cuEventSynchronize");
    NOT_WHILE_CAPTURING();
    EventRef event = event_of(e);
    std::unique_lock<std::mutex> l(event->m);
    uint64_t ticket = event->recorded;
    while (event->done < ticket && sticky[event->device] == OK)
        event->reached.wait_for(l, std::chrono::milliseconds(2));
    return sticky[event->device];
}
EXPORT int cuEventElapsedTime_v2(float *ms, void *a, void *b)
{
    *ms = std::chrono::duration<float, std::milli>(event_of(b)->at - event_of(a)->at).count();
    return OK;
}
EXPORT int cuEventElapsedTime(float *ms, void *a, void *b)
{
    return cuEventElapsedTime_v2(ms, a, b);
}
EXPORT int cuStreamWaitEvent(void *s, void *e, unsigned)
{
    ENTER("cuStreamWaitEvent");
    EventRef event = event_of(e);
    uint64_t ticket;
    {
        std::lock_guard<std::mutex> l(event->m);
        ticket = event->recorded;
    }
    return stream_of(s)->push(nullptr, [event, ticket] {
        std::unique_lock<std::mutex> l(event->m);
        while (event->done < ticket && sticky[event->device] == OK)
            event->reached.wait_for(l, std::chrono::milliseconds(2));
    });
}
EXPORT int cuLaunchHostFunc(void *s, void (*f)(void *), void *data)
{
    ENTER("cuLaunchHostFunc");
    return stream_of(s)->push(nullptr, [=] { f(data); });
}
