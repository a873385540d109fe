// References to Python objects that queued work needs: a FIFO per stream, released by threads that hold the GIL. Also
// the failures of a stream that is freed before anybody saw them.
#include "objects.h"

#include <set>
#include <vector>

namespace binding
{

static std::vector<PyObject *> garbage; // dropped by threads without the GIL
static std::atomic<bool> any_garbage{false};
static std::atomic<bool> release_pending{false};
static std::atomic<uint64_t> seen; // streams that were looked at
static nb::handle unseen;          // see set_unseen

// Where Python has a GIL, that guards what follows, and an ft_mutex is nothing. Where it has none, no thread calls
// Python with one of them held: so nobody waits long, and none of them is held while a fork has stopped all other
// threads. This one guards `keepers`, the owners of streams and the users of each keeper; it comes before the lock of a
// keeper.
static nb::ft_mutex keepers_lock;
static std::set<Keeper *> keepers; // of all streams

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
    unseen = tell.release(); // kept for ever, like the classes of exceptions
}

nb::list take_unseen()
{
    std::vector<ag_stream *> streams;
    {
        nb::ft_lock_guard guard(keepers_lock);
        for (Keeper *k : keepers) streams.push_back(ag_stream_ref(k->stream));
    }
    nb::list out;
    for (ag_stream *stream : streams) {
        nb::list failures = take_failures(stream);
        if (nb::len(failures) != 0) out.append(nb::make_tuple(text_of(ag_stream_name(stream)), failures));
        ag_stream_unref(stream);
    }
    return out;
}

// For a stream that is idle and whose failures nobody can ask for any more: not even a Future of it is left.
static void tell_unseen(ag_stream *stream)
{
    if (!unseen.is_valid() || finished()) return;
    nb::error_scope scope; // a destructor may run while an exception is under way
    try {
        nb::list failures = take_failures(stream);
        if (nb::len(failures) != 0) unseen(text_of(ag_stream_name(stream)), failures);
    } catch (nb::python_error &error) {
        error.discard_as_unraisable(unseen);
    }
}

void Keeper::keep(uint64_t ticket, PyObject *object)
{
    nb::ft_lock_guard guard(lock);
    kept.emplace_back(ticket, object);
}

size_t Keeper::n_kept()
{
    nb::ft_lock_guard guard(lock);
    return kept.size();
}

void Keeper::release_prefix()
{
    uint64_t completed = ag_stream_completed(stream);
    for (;;) {
        PyObject *object;
        {
            nb::ft_lock_guard guard(lock);
            if (kept.empty() || kept.front().first > completed) return;
            object = kept.front().second;
            kept.pop_front(); // first, because dropping the object may run Python that calls this function
        }
        Py_DECREF(object);
    }
}

// Whether this keeper still has work: objects that queued work needs, or failures that nobody else will ask for.
bool Keeper::waits() const
{
    return !kept.empty() || (orphaned && ag_stream_completed(stream) != ag_stream_submitted(stream));
}

// Called with each submission, by whatever thread: the main one, which runs pending calls, may be blocked for long.
void Keeper::release()
{
    if (any_garbage.load(std::memory_order_relaxed)) drop_garbage();
    release_prefix();
    bool tell;
    {
        nb::ft_lock_guard guard(lock);
        tell = !told && waits();
        if (tell) {
            told = true;
            ag_stream_keeps(stream, true);
        }
    }
    if (tell) release_prefix(); // operations that were done before the stream knew that something is kept
    nb::ft_lock_guard guard(lock);
    if (told && !waits()) {
        told = false;
        ag_stream_keeps(stream, false);
    }
}

void Keeper::leave()
{
    const bool alive = ag_stream_alive(stream);
    {
        nb::ft_lock_guard all(keepers_lock);
        nb::ft_lock_guard guard(lock);
        if (--users > 0 || (alive && waits())) return; // what waits is looked at again when the stream has come to rest
        if (alive) ag_stream_set_owner(stream, nullptr);
        keepers.erase(this);
    }
    if (alive) tell_unseen(stream);
    ag_stream_unref(stream);
    delete this;
}

static void look(ag_stream *stream)
{
    seen.fetch_add(1, std::memory_order_relaxed);
    Keeper *k;
    {
        nb::ft_lock_guard guard(keepers_lock);
        k = static_cast<Keeper *>(ag_stream_owner(stream));
        if (k == nullptr || !ag_stream_alive(stream)) return;
        ++k->users;
    }
    k->release();
    k->leave();
}

Stream::Stream(ag_stream *s, nb::object p) : stream(s), keeper(new Keeper(s)), pool(std::move(p))
{
    {
        nb::ft_lock_guard guard(keepers_lock);
        keepers.insert(keeper);
        ag_stream_set_owner(stream, keeper);
    }
    ag_streams_at_rest(look); // also streams that were dropped, in case the main thread is blocked
}

Stream::~Stream()
{
    if (ag_stream_alive(stream)) {
        while (ag_stream_release(stream)) continue; // no other thread is left that could do it
        {
            nb::ft_lock_guard guard(keeper->lock);
            keeper->orphaned = true;
        }
        keeper->release();
    }
    keeper->leave(); // frees it, now or when the stream has come to rest
}

void release_finished()
{
    drop_garbage();
    ag_streams_at_rest(look);
}

uint64_t streams_seen()
{
    return seen.load(std::memory_order_relaxed);
}

static int release_call(void *)
{
    release_pending.store(false);
    if (!finished()) release_finished();
    return 0;
}

// Called by a worker that is about to sleep, so that a stream without work does not keep arrays until its next call.
void on_idle()
{
    if (finished() || (!ag_streams_rest() && !any_garbage.load()) || release_pending.exchange(true)) return;
    if (Py_AddPendingCall(release_call, nullptr) != 0) release_pending.store(false);
}

void drop_user(void *user)
{
    if (finished()) return; // the interpreter is ending or has ended
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
