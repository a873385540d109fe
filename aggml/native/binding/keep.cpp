// References to Python objects that queued work needs: a FIFO per stream, released where the GIL is held. And what nobody saw
// of the failures of a stream that goes.
#include "objects.h"

#include <set>
#include <vector>

namespace binding
{

static std::vector<PyObject *> garbage; // dropped by threads without the GIL
static std::atomic<bool> any_garbage{false};
static std::atomic<bool> release_pending{false};
static uint64_t seen;              // streams that were looked at; under the GIL, as what follows
static std::set<Keeper *> keepers; // of all streams
static nb::handle unseen;          // see set_unseen

struct GarbageLock {
    GarbageLock()
    {
        pthread_mutex_lock(&ag_locks[AG_LOCK_GARBAGE]);
    }
    GarbageLock(const GarbageLock &) = delete;
    ~GarbageLock()
    {
        pthread_mutex_unlock(&ag_locks[AG_LOCK_GARBAGE]);
    }
};

static void drop_garbage()
{
    std::vector<PyObject *> dropped;
    {
        GarbageLock guard;
        dropped.swap(garbage);
        any_garbage.store(false);
    }
    for (PyObject *object : dropped) Py_DECREF(object);
}

nb::list take_failures(ag_stream *stream)
{
    nb::list out;
    ag_error *batch[16];
    for (size_t n = 16; n == 16;) {
        n = ag_stream_take_failures(stream, batch, 16);
        for (size_t i = 0; i < n; ++i) out.append(wrap_error(batch[i]));
    }
    return out;
}

void set_unseen(nb::object tell)
{
    unseen = tell.release(); // for ever, as the classes of exceptions
}

nb::list take_unseen()
{
    nb::list out;
    for (Keeper *k : keepers) {
        nb::list failures = take_failures(k->stream);
        if (nb::len(failures) != 0) out.append(nb::make_tuple(std::string(ag_stream_name(k->stream)), failures));
    }
    return out;
}

// Of a stream that is idle and that nobody can ask any more: not even a Future of it is left.
static void tell_unseen(ag_stream *stream)
{
    if (!unseen.is_valid() || finished()) return;
    nb::error_scope scope; // a destructor may run while an exception is under way
    try {
        nb::list failures = take_failures(stream);
        if (nb::len(failures) != 0) unseen(ag_stream_name(stream), failures);
    } catch (nb::python_error &error) {
        error.discard_as_unraisable(unseen);
    }
}

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
    bool alive = ag_stream_alive(stream);
    if (alive) ag_stream_set_owner(stream, nullptr);
    keepers.erase(k);
    delete k;
    if (alive) tell_unseen(stream);
    ag_stream_unref(stream);
}

// Whether there is something to look after: what queued work needs, or, if nobody else will ask, how it ends.
static bool waits(const Keeper &k)
{
    return !k.kept.empty() || (k.orphaned && ag_stream_completed(k.stream) != ag_stream_submitted(k.stream));
}

// Called with each submission, by whatever thread: the main one, which runs pending calls, may be blocked for long.
void Keeper::release()
{
    ++releasing;
    if (any_garbage.load(std::memory_order_relaxed)) drop_garbage();
    release_prefix(*this);
    if (!told && waits(*this)) {
        told = true;
        ag_stream_keeps(stream, true);
        release_prefix(*this); // what was done before the stream knew
    }
    if (told && !waits(*this)) {
        told = false;
        ag_stream_keeps(stream, false);
    }
    if (--releasing == 0 && orphaned && !waits(*this)) free_keeper(this);
}

static void look(ag_stream *stream)
{
    ++seen;
    Keeper *k = static_cast<Keeper *>(ag_stream_owner(stream));
    if (k != nullptr && ag_stream_alive(stream)) k->release();
}

Stream::Stream(ag_stream *s, nb::object p) : stream(s), keeper(new Keeper(s)), pool(std::move(p))
{
    keepers.insert(keeper);
    ag_stream_set_owner(stream, keeper);
    ag_streams_at_rest(look); // dropped ones, should the main thread be blocked
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

void release_finished()
{
    drop_garbage();
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
    GarbageLock guard;
    garbage.push_back(static_cast<PyObject *>(user));
    any_garbage.store(true);
}

void keep_forked()
{
    new (&garbage) std::vector<PyObject *>; // not cleared: a thread of the parent may have been filling it
    any_garbage.store(false);
    release_pending.store(false);
}

} // namespace binding
