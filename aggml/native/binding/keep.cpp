// References to Python objects that queued work needs: a FIFO per stream, released where the GIL is held.
#include "objects.h"

#include <mutex>
#include <set>
#include <vector>

namespace binding
{

static std::mutex garbage_lock;
static std::vector<PyObject *> garbage; // dropped by threads without the GIL
static std::atomic<bool> release_pending{false};

static std::set<Stream *> streams;                        // alive in Python; under the GIL
static std::vector<std::pair<ag_stream *, Kept>> orphans; // dropped in Python with work in flight

void release_prefix(ag_stream *stream, Kept &kept)
{
    uint64_t completed = ag_stream_completed(stream);
    while (!kept.empty() && kept.front().first <= completed) {
        PyObject *object = kept.front().second;
        kept.pop_front(); // first: dropping the object may run Python that comes back here
        Py_DECREF(object);
    }
}

Stream::Stream(ag_stream *s, nb::object p) : stream(s), pool(std::move(p))
{
    streams.insert(this);
}

Stream::~Stream()
{
    streams.erase(this);
    if (ag_stream_alive(stream)) {
        while (ag_stream_release(stream)) continue; // nobody is left who could
        release_prefix(stream, kept);
        if (!kept.empty()) {
            orphans.emplace_back(stream, std::move(kept));
            return;
        }
    }
    ag_stream_unref(stream);
}

void release_finished()
{
    std::vector<PyObject *> dropped;
    {
        std::lock_guard<std::mutex> guard(garbage_lock);
        dropped.swap(garbage);
    }
    for (PyObject *object : dropped) Py_DECREF(object);
    std::vector<Stream *> alive(streams.begin(), streams.end());
    for (Stream *s : alive) {
        if (streams.count(s) && ag_stream_alive(s->stream)) release_prefix(s->stream, s->kept);
    }
    for (size_t i = 0; i < orphans.size();) {
        if (ag_stream_alive(orphans[i].first)) release_prefix(orphans[i].first, orphans[i].second);
        if (orphans[i].second.empty()) {
            ag_stream_unref(orphans[i].first);
            orphans.erase(orphans.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
            ++i;
        }
    }
}

static int release_call(void *)
{
    release_pending.store(false);
    if (!finished()) release_finished();
    return 0;
}

// By a worker that is about to sleep, so a stream that ran dry does not hold arrays until the next call.
void on_idle()
{
    if (finished() || release_pending.exchange(true)) return;
    if (Py_AddPendingCall(release_call, nullptr) != 0) release_pending.store(false);
}

void drop_user(void *user)
{
    if (finished()) return; // the interpreter is going or gone
    std::lock_guard<std::mutex> guard(garbage_lock);
    garbage.push_back(static_cast<PyObject *>(user));
}

} // namespace binding
