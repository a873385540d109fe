// The runtime's reference-counted objects as Python objects, and the description of an operation before it is queued.
#ifndef AG_BINDING_OBJECTS_H
#define AG_BINDING_OBJECTS_H

#include "common.h"

#include <deque>
#include <new>
#include <utility>
#include <vector>

namespace binding
{

struct Error {
    ag_error *error;
    explicit Error(ag_error *e) : error(e)
    {
    }
    Error(const Error &) = delete;
    ~Error()
    {
        ag_error_unref(error);
    }
};

nb::object wrap_error(ag_error *error); // takes the reference

struct Storage {
    ag_storage *storage;
    Storage(const char *name, uintptr_t address, size_t size, int backing, bool is_file) : storage(ag_storage_new(name))
    {
        if (storage == nullptr) throw std::bad_alloc();
        ag_storage_lies(storage, address, size, static_cast<ag_backing>(backing), is_file);
    }
    Storage(const Storage &) = delete;
    ~Storage()
    {
        ag_storage_unref(storage);
    }
};

// Bytes with the buffer protocol. Zeroed: the same in every run. Large blocks are mapped, so that nothing is touched
// here, on the event loop.
struct Memory {
    uint8_t *data = nullptr;
    size_t size, mapped = 0;
    Memory(size_t n, size_t alignment);
    Memory(const Memory &) = delete;
    ~Memory();
};

struct Waiter;

[[noreturn]] void raise_no_descriptor(); // by errno: TooManyFiles

// A loop's descriptor, and the waits that are armed for it: it keeps them, and the collector sees that it does. The
// lock of waits.cpp guards its members and those of its waits.
struct Notifier {
    ag_notifier *notifier;
    Waiter *armed = nullptr;
    nb::object current; // given out, and not called as far as it is known
    // Turns of the loop that called what is due, and the one in which the wait of `current` was armed.
    uint64_t turn = 0, current_turn = 0;
    Notifier() : notifier(ag_notifier_new())
    {
        if (notifier == nullptr) raise_no_descriptor();
    }
    Notifier(const Notifier &) = delete;
    ~Notifier()
    {
        cancel_all();
        ag_notifier_close(notifier);
        ag_notifier_unref(notifier);
    }
    void cancel_all();
};

// What is called once a ticket is done: the notifier gives `callback` out then. Unlinked: not armed (any more).
struct Waiter {
    ag_wait wait = {};
    Notifier *notifier = nullptr; // in whose list it is, with a reference to the object of this
    Waiter *next = nullptr, **link = nullptr;
    PyObject *self = nullptr;
    uint64_t turn = 0;          // of its notifier, when it was armed
    nb::object owner, callback; // the Stream object
    Waiter() = default;
    Waiter(const Waiter &) = delete;
    ~Waiter()
    {
        ag_wait_cancel(&wait);
    }
    void cancel(); // leaves the heap of its stream at once; may drop the last reference to this
};

struct Pool {
    ag_pool *pool;
    Pool(int n_threads, int spin_us, int priority, bool strict, nb::sequence mask);
    Pool(const Pool &) = delete;
    ~Pool();
};

struct Plan {
    ag_plan *plan;
    Plan(uint32_t cpu, size_t work_base) : plan(ag_plan_new(cpu, work_base))
    {
        if (plan == nullptr) throw std::bad_alloc();
    }
    Plan(const Plan &) = delete;
    ~Plan()
    {
        ag_plan_unref(plan);
    }
};

// Python objects that native work of a stream keeps alive, ordered by the ticket after which they may be released. It
// outlives the Stream object as long as it keeps any.
struct Keeper {
    ag_stream *stream; // a reference
    nb::ft_mutex lock; // of kept, told, orphaned
    std::deque<std::pair<uint64_t, PyObject *>> kept;
    bool told = false;     // the stream tells when it comes to rest
    bool orphaned = false; // its Stream object is gone
    int users = 1;         // that object, and threads that look at the stream; under the lock of all keepers
    explicit Keeper(ag_stream *s) : stream(s)
    {
    }
    Keeper(const Keeper &) = delete;
    void keep(uint64_t ticket, PyObject *object); // takes the reference
    void release();                               // what is finished; after every submission
    void leave(); // by one of the users: the last one frees it unless something of it is queued
    size_t n_kept();

  private:
    bool waits() const;
    void release_prefix();
};
void release_finished(); // of the streams that came to rest
uint64_t streams_seen(); // by it so far: the work that it was, for tests
void set_unseen(
    nb::object tell);   // Python's function of (name of a stream, its Errors): what nobody saw of one that went
nb::list take_unseen(); // (name, [Error, ...]) of all streams that there are, at exit
nb::list take_failures(ag_stream *stream);
void on_idle(); // by a worker that is about to sleep: a stream that ran dry holds no arrays until the next call
void drop_user(void *user); // an exception that native code held, from any thread
void keep_forked();         // in the child of a fork

struct Stream {
    ag_stream *stream;
    Keeper *keeper;
    nb::object pool;
    Stream(ag_stream *s, nb::object p);
    Stream(const Stream &) = delete;
    ~Stream();
};

// One operation that is not queued yet. Consumed by the submission.
struct Desc {
    ag_slot slot = {};
    PyObject *keep = nullptr; // released when the operation is done
    nb::object span;          // of a transfer from or to an array: the tensor's side
    bool to_array = false;
    bool used = false;
    Desc() = default;
    Desc(const Desc &) = delete;
    ~Desc()
    {
        if (!used) ag_slot_drop(&slot);
        Py_XDECREF(keep);
    }
};

int64_t item(PyObject *tuple, Py_ssize_t i); // an integer; the index is valid
void four(PyObject *object, int64_t *out);   // a tuple of four

// Bytes from the first to behind the last item of extents and strides; 0 if there is none. Refuses negative ones and
// what no memory has.
size_t reach(const int64_t *ne, const int64_t *nb, size_t item);

// A placed tensor as transfers see it: where its items lie, and the storage that failures poison. All of it lies within
// that storage: it is looked at here once more, since what is written beyond ends the process, or worse.
struct Span {
    uintptr_t address;
    int64_t ne[4], nb[4];
    size_t size; // of one item: an element, or a byte of a quantized row
    bool whole;  // writing all items replaces the whole storage
    ag_storage *storage;
    size_t bytes;    // from the first on
    nb::object keep; // owns the memory
    Span(uintptr_t a, nb::tuple ne_, nb::tuple nb__, size_t n, bool w, Storage &s, nb::object k);
    Span(const Span &) = delete;
    ~Span()
    {
        ag_storage_unref(storage);
    }
    void check(size_t offset, size_t n) const // that such bytes of it are within
    {
        if (offset > bytes || n > bytes - offset) throw nb::value_error("the bytes reach beyond the end of the tensor");
    }
    void read_by(ag_slot &slot) const
    {
        slot.inline_storages[slot.n_reads++] = ag_storage_ref(storage); // before any write is noted
    }
    void written_by(ag_slot &slot, bool full) const
    {
        slot.inline_storages[slot.n_reads] = ag_storage_ref(storage);
        (full ? slot.n_writes : slot.n_partial) = 1;
    }
};

// A queued operation: its stream, and the slot of the ring where its times and error will be. Once it is done and
// anybody asks, they are here and the ring is let go: a block of it holds 32 slots of 300 bytes.
struct Op {
    ag_stream *stream;
    ag_block *block; // NULL: settled
    uint64_t ticket;
    nb::object owner;   // the Stream object
    bool lasts = false; // it was queued behind a plan that takes longer than a turn of an event loop
    Op(const Op &) = delete;
    Op(ag_stream *s, ag_block *b, uint64_t t, nb::object o) : stream(s), block(b), ticket(t), owner(std::move(o))
    {
    }
    struct {
        uint64_t submitted, started, done, moved;
        ag_error *error = nullptr;
        const char *operation;
        bool derived;
    } end; // of one that is settled
    ~Op()
    {
        ag_block_unref(block);
        ag_error_unref(end.error);
    }
    bool settle(); // whether it is done; the object is locked, as for all that reads `block` or `end`
    ag_slot &slot() const
    {
        return block->slots[ticket - block->base];
    }
    bool done() const // asked without the GIL, too
    {
        return ticket <= ag_stream_completed(stream);
    }
};

[[noreturn]] void raise_submit(ag_submit_status status, const char *name);

std::vector<ag_storage *> storages_of(nb::handle list);

// Whether the bytes of a small array may be a mapped file's.
bool may_be_file(nb::handle array);

// Describes the copy between a buffer of up to four axes and a span: shapes must agree in reversed order. The caller
// keeps both alive.
void buffer_copy(ag_slot &slot, bool to_array, const Py_buffer &buffer, const Span &span);

// The same between anything with the buffer protocol and a span.
// Returns what keeps both alive: the memoryview pins the array's bytes.
nb::object array_copy(ag_slot &slot, bool to_array, nb::handle array, const Span &span);

} // namespace binding

#endif
