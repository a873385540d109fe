// References to Python objects that queued work needs: a FIFO per stream, released where the GIL is held.
#include "objects.h"

#include <mutex>
#include <vector>

namespace binding
{

static std::mutex garbage_lock;
static std::vector<PyObject *> garbage; // dropped by threads without the GIL
static std::atomic<bool> any_garbage{false};
static std::atomic<bool> release_pending{false};
static uint64_t seen; // streams that were looked at; under the GIL

static void release_prefix(Keeper &k)
{
    uint64_t completed = ag_stream_completed(k.stream);
    while (!k.kept.empty() && k.kept.front().first <= completed) {
        PyObject *object = k.kept.front().second;
        k.kept.pop_front(); // first: dropping the object may run Python that comes back here
        Py_DECREF(object);
    }
}

static void free_keeper(Keeper *k)
{
    ag_stream *stream = k->stream;
    if (ag_stream_alive(stream)) ag_stream_set_owner(stream, nullptr);
    delete k;
    ag_stream_unref(stream);
}

void Keeper::release()
{
    ++releasing;
    release_prefix(*this);
    if (!kept.empty() && !told) {
        told = true;
        ag_stream_keeps(stream, true);
        release_prefix(*this); // what was done before the stream knew
    }
    if (kept.empty() && told) {
        told = false;
        ag_stream_keeps(stream, false);
    }
    if (--releasing == 0 && orphaned && kept.empty()) free_keeper(this);
}

Stream::Stream(ag_stream *s, nb::object p) : stream(s), keeper(new Keeper(s)), pool(std::move(p))
{
    ag_stream_set_owner(stream, keeper);
}

Stream::~Stream()
{
    keeper->orphaned = true;
    if (ag_stream_alive(stream)) {
        while (ag_stream_release(stream)) continue; // nobody is left who could
        keeper->release();                          // frees it, or does so when the stream has come to rest
    } else if (keeper->releasing == 0) {
        free_keeper(keeper);
    }
}

static void look(ag_stream *stream)
{
    ++seen;
    Keeper *k = static_cast<Keeper *>(ag_stream_owner(stream));
    if (k != nullptr && ag_stream_alive(stream)) k->release();
}

void release_finished()
{
    std::vector<PyObject *> dropped;
    {
        std::lock_guard<std::mutex> guard(garbage_lock);
        dropped.swap(garbage);
        any_garbage.store(false);
    }
    for (PyObject *object : dropped) Py_DECREF(object);
    ag_streams_at_rest(look);
}

uint64_t streams_seen()
{
    return seen;
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
    if (finished() || (!ag_streams_rest() && !any_garbage.load()) || release_pending.exchange(true)) return;
    if (Py_AddPendingCall(release_call, nullptr) != 0) release_pending.store(false);
}

void drop_user(void *user)
{
    if (finished()) return; // the interpreter is going or gone
    std::lock_guard<std::mutex> guard(garbage_lock);
    garbage.push_back(static_cast<PyObject *>(user));
    any_garbage.store(true);
}

} // namespace binding
