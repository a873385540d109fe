// Python face of the native layer: arguments in, errors out. The only file that knows both sides.
//
// Here: nanobind classes over the runtime's counted objects, and the references to Python objects that queued work
// needs (a FIFO per stream, released where the GIL is held). Arguments arrive validated by the package; what is
// checked here again is what would otherwise touch memory that it must not. Not here: any decision.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <poll.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <set>
#include <utility>
#include <vector>

// The C headers use C11 atomics; in C++ the layout of std::atomic is the same for all types used here.
#define _Atomic(T) std::atomic<T>
#include <atomic>
#include <chrono>
#include <thread>
using std::atomic_bool;
using std::atomic_int;
using std::atomic_uint;
using std::atomic_uint_fast64_t;
#define AG_RUNTIME_CPP 1
extern "C" {
#include "runtime/runtime.h"
#include "scalar/quant.h"
}

namespace nb = nanobind;
using namespace nb::literals;

namespace
{

// -- without the GIL ---------------------------------------------------------------------------------------------------

std::atomic<bool> finished{false};        // the interpreter is going: set at exit, by the thread that ends it
std::atomic<int> taking_back{0};          // threads between their native work and the GIL
std::atomic<std::thread::id> last_thread; // the one that ends the interpreter

// Releases the GIL for a scope. A thread that wants it back after the exit began is stopped for good: Python would end it
// by unwinding through C++ frames, and that ends the process.
struct Unlocked {
    PyThreadState *state = PyEval_SaveThread();
    Unlocked() = default;
    Unlocked(const Unlocked &) = delete;
    ~Unlocked()
    {
        taking_back.fetch_add(1);
        if (finished.load() && std::this_thread::get_id() != last_thread.load()) {
            taking_back.fetch_sub(1);
            for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
        }
        PyEval_RestoreThread(state);
        taking_back.fetch_sub(1);
    }
};

// -- exceptions: the package tells its classes once ------------------------------------------------------------------

struct Exceptions {
    nb::handle invalid_state, alloc_failed, invalid_argument, unsupported;
} exceptions;

[[noreturn]] void raise(nb::handle type, const std::string &message)
{
    PyErr_SetString(type.is_valid() ? type.ptr() : PyExc_RuntimeError, message.c_str());
    throw nb::python_error();
}

// -- Python objects that native work keeps alive -----------------------------------------------------------------------

using Kept = std::deque<std::pair<uint64_t, PyObject *>>;

std::mutex garbage_lock;
std::vector<PyObject *> garbage; // dropped by threads without the GIL
std::atomic<bool> release_pending{false};

struct Stream;
std::set<Stream *> streams;                        // alive in Python; under the GIL
std::vector<std::pair<ag_stream *, Kept>> orphans; // dropped in Python with work in flight

void release_prefix(ag_stream *stream, Kept &kept)
{
    uint64_t completed = ag_stream_completed(stream);
    while (!kept.empty() && kept.front().first <= completed) {
        PyObject *object = kept.front().second;
        kept.pop_front(); // first: dropping the object may run Python that comes back here
        Py_DECREF(object);
    }
}

struct Stream {
    ag_stream *stream;
    Kept kept;
    nb::object pool;

    Stream(ag_stream *s, nb::object p) : stream(s), pool(std::move(p))
    {
        streams.insert(this);
    }
    Stream(const Stream &) = delete;
    ~Stream()
    {
        streams.erase(this);
        if (ag_stream_alive(stream)) {
            release_prefix(stream, kept);
            if (!kept.empty()) {
                orphans.emplace_back(stream, std::move(kept));
                return;
            }
        }
        ag_stream_unref(stream);
    }
};

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

int release_call(void *)
{
    release_pending.store(false);
    if (!finished.load()) release_finished();
    return 0;
}

// By a worker that is about to sleep, so a stream that ran dry does not hold arrays until the next call.
void on_idle()
{
    if (finished.load() || release_pending.exchange(true)) return;
    if (Py_AddPendingCall(release_call, nullptr) != 0) release_pending.store(false);
}

void drop_user(void *user)
{
    if (finished.load()) return; // the interpreter is going or gone
    std::lock_guard<std::mutex> guard(garbage_lock);
    garbage.push_back(static_cast<PyObject *>(user));
}

// -- counted objects -----------------------------------------------------------------------------------------------

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

nb::object wrap_error(ag_error *error) // takes the reference
{
    if (error == nullptr) return nb::none();
    return nb::cast(new Error(error), nb::rv_policy::take_ownership);
}

struct Storage {
    ag_storage *storage;
    explicit Storage(const char *name) : storage(ag_storage_new(name))
    {
        if (storage == nullptr) throw std::bad_alloc();
    }
    Storage(const Storage &) = delete;
    ~Storage()
    {
        ag_storage_unref(storage);
    }
};

struct Memory {
    uint8_t *data = nullptr;
    size_t size, mapped = 0;
    // Zeroed: the same bytes in every run. Large blocks are mapped, so that nothing is touched here, on the event loop.
    Memory(size_t n, size_t alignment) : size(n)
    {
        constexpr size_t large = size_t{1} << 16, page = 4096;
        if (n == 0) return;
        void *p = nullptr;
        if (n <= PTRDIFF_MAX - page && alignment <= page) {
            if (n >= large) {
                mapped = (n + page - 1) & ~(page - 1);
                p = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                if (p == MAP_FAILED) p = nullptr;
#ifdef MADV_HUGEPAGE
                if (p != nullptr) madvise(p, mapped, MADV_HUGEPAGE);
#endif
            } else if (posix_memalign(&p, alignment, n) == 0) {
                memset(p, 0, n);
            }
        }
        if (p == nullptr) raise(exceptions.alloc_failed, "[Memory] no memory for " + std::to_string(n) + " bytes");
        data = static_cast<uint8_t *>(p);
    }
    Memory(const Memory &) = delete;
    ~Memory()
    {
        if (mapped != 0) {
            munmap(data, mapped);
        } else {
            free(data);
        }
    }
};

int memory_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    Memory *memory = nb::inst_ptr<Memory>(nb::handle(self));
    static char none;
    return PyBuffer_FillInfo(view, self, memory->size ? static_cast<void *>(memory->data) : &none,
                             static_cast<Py_ssize_t>(memory->size), 0, flags);
}

PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void *>(memory_getbuffer)}, {0, nullptr}};

struct Notifier {
    ag_notifier *notifier;
    Notifier() : notifier(ag_notifier_new())
    {
        if (notifier == nullptr) raise(exceptions.alloc_failed, "[Notifier] no file descriptor is left");
    }
    Notifier(const Notifier &) = delete;
    ~Notifier()
    {
        ag_notifier_close(notifier);
        ag_notifier_unref(notifier);
    }
};

struct Pool {
    ag_pool *pool;
    Pool(int n_threads, int spin_us, int priority, bool strict, nb::sequence mask)
    {
        ag_pool_params params = {};
        params.n_threads = n_threads;
        params.spin_us = spin_us;
        params.priority = priority;
        params.strict = strict;
        size_t n = nb::len(mask);
        for (size_t i = 0; i < n && i < sizeof params.mask; ++i) {
            params.mask[i] = nb::cast<bool>(mask[i]);
            params.has_mask = params.has_mask || params.mask[i];
        }
        Unlocked unlocked;
        pool = ag_pool_new(&params);
        if (pool == nullptr) throw std::bad_alloc();
    }
    Pool(const Pool &) = delete;
    ~Pool()
    {
        Unlocked unlocked; // joins its workers, who may be about to ask for the GIL's pending calls
        ag_pool_unref(pool);
    }
};

// -- plans -----------------------------------------------------------------------------------------------------------

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

int64_t item(PyObject *tuple, Py_ssize_t i)
{
    int64_t value = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    if (value == -1 && PyErr_Occurred()) throw nb::python_error();
    return value;
}

void four(PyObject *object, int64_t *out)
{
    if (!PyTuple_CheckExact(object) || PyTuple_GET_SIZE(object) != 4)
        throw nb::type_error("a tuple of four ints is needed");
    for (int i = 0; i < 4; ++i) out[i] = item(object, i);
}

// (type, address, in_arena, ne, nb), or None for an operand that is not given.
agk_view view_of(PyObject *object)
{
    agk_view view = {};
    view.type = AGK_NONE;
    if (object == Py_None) return view;
    if (!PyTuple_CheckExact(object) || PyTuple_GET_SIZE(object) != 5)
        throw nb::type_error("an operand is a tuple of five");
    view.type = static_cast<int32_t>(item(object, 0));
    view.addr = PyLong_AsSize_t(PyTuple_GET_ITEM(object, 1));
    if (PyErr_Occurred()) throw nb::python_error();
    view.arena_mask = PyTuple_GET_ITEM(object, 2) == Py_True ? UINTPTR_MAX : 0;
    four(PyTuple_GET_ITEM(object, 3), view.ne);
    four(PyTuple_GET_ITEM(object, 4), view.nb);
    if (agk_traits(view.type)->name == nullptr) throw nb::type_error("an operand's element type is unknown here");
    return view;
}

agk_node node_of(int op, nb::tuple dst, nb::tuple srcs, nb::bytes params)
{
    agk_node node = {};
    if (agk_op_name(op) == nullptr) throw nb::value_error("unknown op");
    if (nb::len(srcs) > AGK_MAX_SRC) throw nb::value_error("too many operands");
    if (params.size() != sizeof node.params) throw nb::value_error("op parameters are 64 bytes");
    node.op = op;
    node.n_src = static_cast<int32_t>(nb::len(srcs));
    node.dst = view_of(dst.ptr());
    for (int i = 0; i < node.n_src; ++i) node.src[i] = view_of(PyTuple_GET_ITEM(srcs.ptr(), i));
    memcpy(node.params, params.c_str(), sizeof node.params);
    return node;
}

// None, or (status, message): why this node cannot be part of a plan.
nb::object plan_add(Plan &self, int op, const char *name, nb::tuple dst, nb::tuple srcs, nb::bytes params,
                    int writes_leaf)
{
    agk_node node = node_of(op, dst, srcs, params);
    char message[AGK_MESSAGE] = "";
    agk_status status = ag_plan_add(self.plan, &node, name, writes_leaf, message);
    if (status == AGK_OK) return nb::none();
    return nb::make_tuple(static_cast<int>(status), std::string(message));
}

std::vector<ag_storage *> storages_of(nb::handle sequence)
{
    std::vector<ag_storage *> out;
    for (nb::handle h : sequence) out.push_back(nb::cast<Storage &>(h).storage);
    return out;
}

void plan_seal(Plan &self, nb::tuple reads, nb::tuple writes, nb::tuple partial)
{
    auto r = storages_of(reads), w = storages_of(writes), p = storages_of(partial);
    if (!ag_plan_seal(self.plan, r.data(), r.size(), w.data(), w.size(), p.data(), p.size())) throw std::bad_alloc();
}

nb::list plan_steps(Plan &self)
{
    nb::list out;
    size_t index = 0;
    for (size_t i = 0; i < self.plan->n_steps; ++i) {
        const ag_step &step = self.plan->steps[i];
        while (self.plan->nodes[index] != step.node) ++index;
        out.append(nb::make_tuple(std::string(self.plan->names[index]), std::string(agk_op_name(step.node->op)),
                                  step.n_chunks));
    }
    return out;
}

// -- operations: described, then submitted -------------------------------------------------------------------------

// One operation that is not queued yet. Consumed by the submission.
struct Desc {
    ag_slot slot = {};
    PyObject *keep = nullptr; // released when the operation is done
    bool used = false;
    Desc() = default;
    Desc(const Desc &) = delete;
    ~Desc()
    {
        if (!used) ag_slot_drop(&slot);
        Py_XDECREF(keep);
    }
};

const char *intern(const std::string &text) // operation names: a handful of literals
{
    static std::set<std::string> names;
    return names.insert(text).first->c_str();
}

void set_storages(ag_slot &slot, nb::handle reads, nb::handle writes, nb::handle partial)
{
    auto r = storages_of(reads), w = storages_of(writes), p = storages_of(partial);
    size_t n = r.size() + w.size() + p.size();
    ag_storage **list = slot.few;
    if (n > UINT16_MAX) throw nb::value_error("too many storages");
    if (n > AG_INLINE_STORAGES) {
        slot.many = static_cast<ag_storage **>(malloc(n * sizeof *slot.many));
        if (slot.many == nullptr) throw std::bad_alloc();
        list = slot.many;
    }
    for (auto *group : {&r, &w, &p}) {
        for (ag_storage *storage : *group) *list++ = ag_storage_ref(storage);
    }
    slot.n_reads = static_cast<uint16_t>(r.size());
    slot.n_writes = static_cast<uint16_t>(w.size());
    slot.n_partial = static_cast<uint16_t>(p.size());
}

Desc *desc(ag_kind kind, const std::string &operation, nb::handle keep)
{
    Desc *d = new Desc();
    d->slot.kind = kind;
    d->slot.operation = intern(operation);
    if (keep.is_valid() && !keep.is_none()) {
        d->keep = keep.ptr();
        Py_INCREF(d->keep);
    }
    return d;
}

template <typename Fill> nb::object finish(Desc *d, nb::handle reads, nb::handle writes, nb::handle partial, Fill fill)
{
    nb::object out = nb::cast(d, nb::rv_policy::take_ownership);
    set_storages(d->slot, reads, writes, partial);
    fill(d->slot);
    return out;
}

// A placed tensor as transfers see it: where its items lie, and the storage that failures poison.
struct Span {
    uintptr_t address;
    int64_t ne[4], nb[4];
    size_t size; // of one item: an element, or a byte of a quantized row
    bool whole;  // writing all items replaces the whole storage
    ag_storage *storage;
    nb::object keep; // owns the memory
    Span(uintptr_t a, nb::tuple ne_, nb::tuple nb__, size_t n, bool w, Storage &s, nb::object k)
        : address(a), size(n), whole(w), storage(ag_storage_ref(s.storage)), keep(std::move(k))
    {
        four(ne_.ptr(), ne);
        four(nb__.ptr(), nb);
    }
    Span(const Span &) = delete;
    ~Span()
    {
        ag_storage_unref(storage);
    }
    void read_by(ag_slot &slot) const
    {
        slot.few[slot.n_reads++] = ag_storage_ref(storage); // before any write is noted
    }
    void written_by(ag_slot &slot, bool full) const
    {
        slot.few[slot.n_reads] = ag_storage_ref(storage);
        (full ? slot.n_writes : slot.n_partial) = 1;
    }
};

void tidy(ag_copy &c)
{
    if (c.ne[0] * c.ne[1] * c.ne[2] * c.ne[3] == 0) c = ag_copy{c.dst, c.src, {1, 1, 1, 1}, {}, {}, 0};
    ag_copy_simplify(&c);
}

// Between an array (anything with the buffer protocol, up to 4-D) and a span: shapes must agree in reversed order.
// Returns what keeps both alive: the memoryview pins the array's bytes.
nb::object array_copy(ag_slot &slot, bool to_array, nb::handle array, const Span &span)
{
    nb::object view = nb::steal(PyMemoryView_FromObject(array.ptr()));
    if (!view.is_valid()) throw nb::python_error();
    Py_buffer *buffer = PyMemoryView_GET_BUFFER(view.ptr());
    ag_copy &c = slot.u.copy;
    memcpy(c.ne, span.ne, sizeof c.ne);
    memcpy(to_array ? c.src_nb : c.dst_nb, span.nb, sizeof span.nb);
    int64_t *array_nb = to_array ? c.dst_nb : c.src_nb;
    if (buffer->ndim > 4 || (buffer->ndim > 0 && buffer->shape == nullptr))
        throw nb::value_error("arrays have up to four axes");
    if (static_cast<size_t>(buffer->itemsize) != span.size)
        throw nb::value_error("the array's elements have another size");
    if (to_array && buffer->readonly) throw nb::value_error("the array is read-only");
    int64_t step = buffer->itemsize;
    for (int d = 0; d < 4; ++d) {
        int axis = buffer->ndim - 1 - d;
        int64_t extent = axis >= 0 ? buffer->shape[axis] : 1;
        if (extent != c.ne[d]) throw nb::value_error("the array's shape is not the tensor's");
        array_nb[d] = axis >= 0 && buffer->strides != nullptr ? buffer->strides[axis] : step;
        step *= extent;
    }
    c.item = span.size;
    auto *tensor = reinterpret_cast<uint8_t *>(span.address), *host = static_cast<uint8_t *>(buffer->buf);
    c.dst = to_array ? host : tensor;
    c.src = to_array ? tensor : host;
    tidy(c);
    if (to_array) {
        span.read_by(slot);
    } else {
        span.written_by(slot, span.whole);
    }
    return nb::make_tuple(view, span.keep);
}

nb::object array_desc(bool to_array, nb::handle array, const Span &span, const std::string &operation)
{
    Desc *d = desc(AG_KIND_COPY, operation, nb::handle());
    nb::object out = nb::cast(d, nb::rv_policy::take_ownership);
    d->keep = array_copy(d->slot, to_array, array, span).release().ptr();
    return out;
}

// Contiguous bytes at `offset` of a span; the caller has checked the range.
nb::object bytes_desc(bool to_array, nb::handle array, const Span &span, size_t offset, bool whole,
                      const std::string &operation)
{
    nb::object view = nb::steal(PyMemoryView_FromObject(array.ptr()));
    if (!view.is_valid()) throw nb::python_error();
    Py_buffer *buffer = PyMemoryView_GET_BUFFER(view.ptr());
    if (!PyBuffer_IsContiguous(buffer, 'C') || (to_array && buffer->readonly))
        throw nb::value_error("a contiguous (writable) array is needed");
    Desc *d = desc(AG_KIND_COPY, operation, nb::make_tuple(view, span.keep));
    nb::object out = nb::cast(d, nb::rv_policy::take_ownership);
    auto *tensor = reinterpret_cast<uint8_t *>(span.address + offset), *host = static_cast<uint8_t *>(buffer->buf);
    d->slot.u.copy = ag_copy{to_array ? host : tensor,        to_array ? tensor : host, {1, 1, 1, 1}, {}, {},
                             static_cast<size_t>(buffer->len)};
    if (to_array) {
        span.read_by(d->slot);
    } else {
        span.written_by(d->slot, whole);
    }
    return out;
}

nb::object copy_desc(const Span &dst, const Span &src, const std::string &operation)
{
    if (memcmp(dst.ne, src.ne, sizeof dst.ne) != 0 || dst.size != src.size)
        throw nb::value_error("the tensors have different shapes");
    Desc *d = desc(AG_KIND_COPY, operation, nb::make_tuple(dst.keep, src.keep));
    nb::object out = nb::cast(d, nb::rv_policy::take_ownership);
    ag_copy &c = d->slot.u.copy;
    c.dst = reinterpret_cast<uint8_t *>(dst.address);
    c.src = reinterpret_cast<const uint8_t *>(src.address);
    memcpy(c.ne, dst.ne, sizeof c.ne);
    memcpy(c.dst_nb, dst.nb, sizeof c.dst_nb);
    memcpy(c.src_nb, src.nb, sizeof c.src_nb);
    c.item = dst.size;
    tidy(c);
    src.read_by(d->slot);
    dst.written_by(d->slot, dst.whole);
    return out;
}

nb::object fill_desc(const Span &span, int value, size_t offset, size_t size, bool whole, const std::string &operation)
{
    Desc *d = desc(AG_KIND_FILL, operation, span.keep);
    nb::object out = nb::cast(d, nb::rv_policy::take_ownership);
    d->slot.u.fill.dst = reinterpret_cast<uint8_t *>(span.address + offset);
    d->slot.u.fill.value = value;
    d->slot.u.fill.size = size;
    span.written_by(d->slot, whole);
    return out;
}

nb::object clear_desc(uintptr_t address, int value, size_t size, nb::handle keep)
{
    Desc *d = desc(AG_KIND_FILL, "clear", keep);
    nb::object out = nb::cast(d, nb::rv_policy::take_ownership);
    d->slot.u.fill.dst = reinterpret_cast<uint8_t *>(address);
    d->slot.u.fill.value = value;
    d->slot.u.fill.size = size;
    return out;
}

nb::object plan_desc(nb::object plan, uintptr_t arena, const std::string &operation, nb::handle keep)
{
    return finish(desc(AG_KIND_PLAN, operation, keep), nb::tuple(), nb::tuple(), nb::tuple(), [&](ag_slot &slot) {
        slot.u.plan.plan = ag_plan_ref(nb::cast<Plan &>(plan).plan);
        slot.u.plan.arena = arena;
    });
}

nb::object mark_desc(const std::string &operation, nb::tuple accepts)
{
    return finish(desc(AG_KIND_NOP, operation, nb::handle()), nb::tuple(), accepts, nb::tuple(), [](ag_slot &) {});
}

nb::object delay_desc(double seconds, const std::string &operation, nb::tuple reads, nb::tuple writes,
                      nb::tuple partial)
{
    return finish(desc(AG_KIND_DELAY, operation, nb::handle()), reads, writes, partial,
                  [&](ag_slot &slot) { slot.u.delay.ns = seconds <= 0 ? 0 : static_cast<uint64_t>(seconds * 1e9); });
}

nb::object wait_desc(Stream &other, nb::object ticket)
{
    return finish(desc(AG_KIND_WAIT, "wait", nb::handle()), nb::tuple(), nb::tuple(), nb::tuple(), [&](ag_slot &slot) {
        slot.u.wait.ticket = ticket.is_none() ? AG_TAIL : nb::cast<uint64_t>(ticket);
        slot.u.wait.stream = ag_stream_ref(other.stream);
    });
}

nb::object fail_desc(Error &error, const std::string &operation, nb::tuple writes, nb::tuple partial)
{
    return finish(desc(AG_KIND_FAIL, operation, nb::handle()), nb::tuple(), writes, partial,
                  [&](ag_slot &slot) { slot.u.fail.error = ag_error_ref(error.error); });
}

nb::object call_desc(const std::string &operation, nb::tuple reads, nb::tuple writes, nb::tuple partial,
                     nb::handle keep)
{
    return finish(desc(AG_KIND_CALL, operation, keep), reads, writes, partial, [](ag_slot &) {});
}

// A queued operation: its stream, and the slot of the ring where its times and error will be.
struct Op {
    ag_stream *stream;
    ag_block *block;
    uint64_t ticket;
    nb::object owner; // the Stream object
    Op(const Op &) = delete;
    Op(ag_stream *s, ag_block *b, uint64_t t, nb::object o) : stream(s), block(b), ticket(t), owner(std::move(o))
    {
    }
    ~Op()
    {
        ag_block_unref(block);
    }
    ag_slot &slot() const
    {
        return block->slots[ticket - block->base];
    }
    bool done() const
    {
        return ticket <= ag_stream_completed(stream);
    }
};

[[noreturn]] void raise_submit(ag_submit_status status, const char *name)
{
    std::string who = std::string("[submit] stream '") + name + "' ";
    switch (status) {
    case AG_SUBMIT_CLOSED: raise(exceptions.invalid_state, who + "is closed");
    case AG_SUBMIT_FORKED:
        raise(exceptions.invalid_state, who + "belongs to the parent process: open a new backend after fork");
    case AG_SUBMIT_LOST: raise(exceptions.invalid_state, who + "is on a device that was lost");
    default: raise(exceptions.alloc_failed, who + "has no memory for another operation");
    }
}

struct alignas(ag_slot) SlotBytes { // std::atomic forbids copies; a slot that is not queued yet is plain bytes
    unsigned char bytes[sizeof(ag_slot)];
};

// groups: [(Stream, [Desc, ...]), ...], enqueued as one step on all streams -> one list of Ops per group.
nb::list submit(nb::sequence groups)
{
    size_t n = nb::len(groups);
    std::vector<ag_batch> batches(n);
    std::vector<std::vector<SlotBytes>> slots(n);
    std::vector<std::vector<ag_block *>> blocks(n);
    std::vector<std::vector<uint64_t>> tickets(n);
    std::vector<std::vector<Desc *>> descs(n);
    std::vector<nb::object> owners(n);
    for (size_t i = 0; i < n; ++i) {
        nb::object group = groups[i];
        owners[i] = group[0];
        Stream &stream = nb::cast<Stream &>(owners[i]);
        release_prefix(stream.stream, stream.kept);
        nb::object list = group[1];
        for (nb::handle h : list) {
            Desc *d = &nb::cast<Desc &>(h);
            if (d->used) throw nb::value_error("an operation can be submitted once");
            descs[i].push_back(d);
            slots[i].emplace_back();
            memcpy(static_cast<void *>(&slots[i].back()), &d->slot, sizeof d->slot);
        }
        blocks[i].resize(slots[i].size());
        tickets[i].resize(slots[i].size());
        batches[i] = ag_batch{stream.stream, reinterpret_cast<ag_slot *>(slots[i].data()), slots[i].size(),
                              blocks[i].data(), tickets[i].data()};
    }
    ag_submit_status status = ag_submit(batches.data(), n);
    if (status != AG_SUBMIT_OK) raise_submit(status, n ? ag_stream_name(batches[0].stream) : "");
    nb::list out;
    for (size_t i = 0; i < n; ++i) {
        Stream &stream = nb::cast<Stream &>(owners[i]);
        nb::list ops;
        for (size_t k = 0; k < descs[i].size(); ++k) {
            Desc *d = descs[i][k];
            d->used = true;
            if (d->keep != nullptr) stream.kept.emplace_back(tickets[i][k], std::exchange(d->keep, nullptr));
            ops.append(
                nb::cast(new Op(stream.stream, blocks[i][k], tickets[i][k], owners[i]), nb::rv_policy::take_ownership));
        }
        out.append(ops);
    }
    for (nb::object &owner : owners) { // what was small has been done here already: let go of it at once
        Stream &stream = nb::cast<Stream &>(owner);
        release_prefix(stream.stream, stream.kept);
    }
    return out;
}

// set*, compute, get* of one stream in one step: the hot path of `run`, one call from Python. sets and gets are lists of
// (array, Span). Nothing is queued unless all of it is.
nb::tuple submit_run(nb::object owner, Plan &plan, uintptr_t arena, nb::handle keep, nb::list sets, nb::list gets)
{
    Stream &stream = nb::cast<Stream &>(owner);
    release_prefix(stream.stream, stream.kept);
    size_t n_sets = nb::len(sets), n_gets = nb::len(gets), n = n_sets + 1 + n_gets;
    struct Slots { // drops what was built if a later array is refused
        std::vector<SlotBytes> bytes;
        size_t built = 0;
        bool queued = false;
        explicit Slots(size_t count) : bytes(count)
        {
        }
        ag_slot &next(ag_kind kind, const char *operation)
        {
            ag_slot *slot = new (&bytes[built]) ag_slot{};
            ++built;
            slot->kind = kind;
            slot->operation = operation;
            return *slot;
        }
        ~Slots()
        {
            for (size_t i = 0; !queued && i < built; ++i) ag_slot_drop(reinterpret_cast<ag_slot *>(&bytes[i]));
        }
    } slots(n);
    std::vector<nb::object> kept(n);
    auto transfer = [&](nb::handle pair, bool to_array, const char *operation) {
        size_t at = slots.built;
        ag_slot &slot = slots.next(AG_KIND_COPY, operation);
        kept[at] = array_copy(slot, to_array, PyTuple_GET_ITEM(pair.ptr(), 0),
                              nb::cast<const Span &>(nb::handle(PyTuple_GET_ITEM(pair.ptr(), 1))));
    };
    for (nb::handle pair : sets) transfer(pair, false, "set");
    ag_slot &compute = slots.next(AG_KIND_PLAN, "graph_compute");
    compute.u.plan.plan = ag_plan_ref(plan.plan);
    compute.u.plan.arena = arena;
    kept[n_sets] = nb::borrow(keep);
    for (nb::handle pair : gets) transfer(pair, true, "get");
    std::vector<ag_block *> blocks(n);
    std::vector<uint64_t> tickets(n);
    ag_batch batch = {stream.stream, reinterpret_cast<ag_slot *>(slots.bytes.data()), n, blocks.data(), tickets.data()};
    ag_submit_status status = ag_submit(&batch, 1);
    if (status != AG_SUBMIT_OK) raise_submit(status, ag_stream_name(stream.stream));
    slots.queued = true;
    nb::object ops = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(n)));
    for (size_t i = 0; i < n; ++i) {
        stream.kept.emplace_back(tickets[i], kept[i].release().ptr());
        PyTuple_SET_ITEM(ops.ptr(), static_cast<Py_ssize_t>(i),
                         nb::cast(new Op(stream.stream, blocks[i], tickets[i], owner), nb::rv_policy::take_ownership)
                             .release()
                             .ptr());
    }
    release_prefix(stream.stream, stream.kept); // what was small has been done here already
    return nb::cast<nb::tuple>(ops);
}

nb::object op_error(Op &op)
{
    if (!op.done()) return nb::none();
    return wrap_error(ag_error_ref(op.slot().error.load()));
}

nb::object seconds_or_none(uint64_t ns)
{
    return ns == 0 ? nb::none() : nb::cast(static_cast<double>(ns) * 1e-9);
}

nb::tuple op_times(Op &op)
{
    ag_slot &slot = op.slot();
    return nb::make_tuple(static_cast<double>(slot.submitted) * 1e-9, seconds_or_none(slot.started.load()),
                          op.done() ? seconds_or_none(slot.done.load()) : nb::none());
}

// Block without the GIL until the ticket is done. Signals are served; a notifier of its own is cheap beside a sleep.
bool op_wait(Op &op, double timeout)
{
    uint64_t begin = ag_now(), spin_until = begin + 20000;
    {
        Unlocked unlocked;
        while (!op.done() && ag_now() < spin_until) continue;
    }
    if (op.done()) return true;
    if (!ag_stream_alive(op.stream))
        raise(exceptions.invalid_state, "[Future.wait] the operation belongs to the parent process");
    Notifier notifier;
    for (;;) {
        double left = timeout < 0 ? -1 : timeout - static_cast<double>(ag_now() - begin) * 1e-9;
        if (op.done()) return true;
        if (timeout >= 0 && left <= 0) break;
        if (ag_stream_watch(op.stream, notifier.notifier, op.ticket)) return true;
        int rc, error;
        {
            Unlocked unlocked;
            struct pollfd fd = {ag_notifier_fd(notifier.notifier), POLLIN, 0};
            rc = poll(&fd, 1, timeout < 0 ? -1 : static_cast<int>(left < 2e6 ? left * 1e3 + 1 : 2e9));
            error = errno;
        }
        if (rc < 0 && error == EINTR && PyErr_CheckSignals() != 0) {
            ag_stream_unwatch(op.stream, notifier.notifier);
            throw nb::python_error();
        }
        ag_notifier_drain(notifier.notifier);
    }
    ag_stream_unwatch(op.stream, notifier.notifier);
    return op.done();
}

nb::object next_call(Stream &self, double timeout)
{
    uint64_t ticket;
    bool got;
    {
        Unlocked unlocked;
        got = ag_stream_next_call(self.stream, static_cast<uint64_t>(timeout * 1e9), &ticket);
    }
    return got ? nb::cast(ticket) : nb::none();
}

void finish_call(Stream &self, nb::object error)
{
    ag_stream_finish_call(self.stream, error.is_none() ? nullptr : ag_error_ref(nb::cast<Error &>(error).error));
}

nb::list take_failures(Stream &self)
{
    nb::list out;
    ag_error *batch[16];
    for (size_t n = 16; n == 16;) {
        n = ag_stream_take_failures(self.stream, batch, 16);
        for (size_t i = 0; i < n; ++i) out.append(wrap_error(batch[i]));
    }
    return out;
}

// -- types -----------------------------------------------------------------------------------------------------------

struct BufferView {
    Py_buffer b;
    BufferView(nb::handle object, int flags)
    {
        if (PyObject_GetBuffer(object.ptr(), &b, flags) != 0) throw nb::python_error();
    }
    BufferView(const BufferView &) = delete;
    ~BufferView()
    {
        PyBuffer_Release(&b);
    }
};

const agk_type_traits *convertible(int type, int64_t n)
{
    const agk_type_traits *traits = agk_traits(type);
    if (traits->name == nullptr) throw nb::value_error("the element type is unknown here");
    if (n % traits->blck_size != 0) throw nb::value_error("the number of elements is no multiple of the block");
    return traits;
}

// ggml_quantize_chunk: the importance matrix has one weight per column and is ignored by types that cannot use it.
void quantize(int type, nb::handle src, nb::handle dst, int64_t n_per_row, nb::object imatrix)
{
    BufferView x(src, PyBUF_C_CONTIGUOUS), y(dst, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    int64_t n = x.b.len / 4;
    const agk_type_traits *traits = convertible(type, n_per_row);
    if (traits->quantize == nullptr && traits->from_float == nullptr)
        raise(exceptions.unsupported, std::string("[quantize] there is no quantizer for ") + traits->name);
    if (n_per_row < 1 || n % n_per_row != 0 || static_cast<size_t>(y.b.len) != agk_row_size(type, n))
        throw nb::value_error("rows and result do not fit together");
    if (imatrix.is_none()) {
        if (traits->needs_imatrix)
            raise(exceptions.invalid_argument,
                  std::string("[quantize] ") + traits->name + " needs an importance matrix");
        Unlocked unlocked;
        if (traits->quantize != nullptr)
            traits->quantize(static_cast<const float *>(x.b.buf), y.b.buf, n / n_per_row, n_per_row, nullptr);
        else
            traits->from_float(static_cast<const float *>(x.b.buf), y.b.buf, n);
        return;
    }
    BufferView weights(imatrix, PyBUF_C_CONTIGUOUS);
    if (weights.b.len != n_per_row * 4) throw nb::value_error("the importance matrix has another size");
    Unlocked unlocked;
    if (traits->quantize != nullptr)
        traits->quantize(static_cast<const float *>(x.b.buf), y.b.buf, n / n_per_row, n_per_row,
                         static_cast<const float *>(weights.b.buf));
    else
        traits->from_float(static_cast<const float *>(x.b.buf), y.b.buf, n);
}

void to_float(int type, nb::handle src, nb::handle dst)
{
    BufferView x(src, PyBUF_C_CONTIGUOUS), y(dst, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    int64_t n = y.b.len / 4;
    const agk_type_traits *traits = convertible(type, n);
    if (traits->to_float == nullptr)
        raise(exceptions.unsupported, std::string("[dequantize] there is no conversion from ") + traits->name);
    if (static_cast<size_t>(x.b.len) != agk_row_size(type, n)) throw nb::value_error("the blocks have another size");
    Unlocked unlocked;
    traits->to_float(x.b.buf, static_cast<float *>(y.b.buf), n);
}

nb::list variants()
{
    nb::list out;
    for (size_t i = 0; i < agk_n_variants; ++i) {
        const agk_variant &v = agk_variants[i];
        out.append(
            nb::make_tuple(std::string(v.kernel), std::string(v.isa), v.needs, (v.needs & ~agk_cpu_features()) == 0));
    }
    return out;
}

void shutdown()
{
    last_thread.store(std::this_thread::get_id());
    finished.store(true);
    ag_on_idle = nullptr;
    Unlocked unlocked;
    ag_timer_stop();
    // Those that did not see the flag get their turn now; at most a second, should one be stuck elsewhere.
    for (int i = 0; i < 1000 && taking_back.load() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

} // namespace

NB_MODULE(_native, m)
{
    nb::set_leak_warnings(false); // streams that the exit of the interpreter finds busy are left to the process
    m.doc() = "Native streams, plans and kernels. Private: arguments are validated by the package above.";
    ag_runtime_init();
    ag_on_idle = on_idle;
    ag_drop_user = drop_user;

    m.def(
        "set_exceptions",
        [](nb::object invalid_state, nb::object alloc_failed, nb::object invalid_argument, nb::object unsupported) {
            exceptions = {invalid_state.release(), alloc_failed.release(), invalid_argument.release(),
                          unsupported.release()};
        },
        "invalid_state"_a, "alloc_failed"_a, "invalid_argument"_a, "unsupported"_a);
    m.def("shutdown", shutdown);
    m.def("release_finished", release_finished);
    m.def("usable_cpus", ag_usable_cpus);
    m.def("cpu_features", agk_cpu_features);
    m.def("now", [] { return static_cast<double>(ag_now()) * 1e-9; });
    m.def("generation", [] { return static_cast<unsigned>(ag_generation.load()); });
    m.def("variants", variants);
    m.def("op_find", [](const char *name) { return agk_op_find(name); }, "name"_a);
    m.def(
        "type_name",
        [](int type) -> nb::object {
            const char *name = agk_traits(type)->name;
            return name == nullptr ? nb::none() : nb::cast(std::string(name));
        },
        "type"_a);
    m.def("quantize", quantize, "type"_a, "src"_a, "dst"_a, "n_per_row"_a, "imatrix"_a.none());
    m.def("to_float", to_float, "type"_a, "src"_a, "dst"_a);
    m.def("submit", submit, "groups"_a);

    nb::class_<Error>(m, "Error")
        .def_static(
            "make",
            [](int code, const std::string &device, const std::string &operation, const std::string &tensor,
               const std::string &text) {
                ag_error *error = ag_error_new(static_cast<ag_code>(code), device.c_str(), operation.c_str(),
                                               tensor.c_str(), text.c_str());
                if (error == nullptr) throw std::bad_alloc();
                return new Error(error);
            },
            "code"_a, "device"_a, "operation"_a, "tensor"_a, "text"_a, nb::rv_policy::take_ownership)
        .def_prop_ro("code", [](Error &e) { return static_cast<int>(e.error->code); })
        .def_prop_ro("device", [](Error &e) { return std::string(e.error->device); })
        .def_prop_ro("operation", [](Error &e) { return std::string(e.error->operation); })
        .def_prop_ro("tensor", [](Error &e) { return std::string(e.error->tensor); })
        .def_prop_ro("text", [](Error &e) { return std::string(e.error->text); })
        .def_prop_rw(
            "seen", [](Error &e) { return e.error->seen.load(); },
            [](Error &e, bool seen) { e.error->seen.store(seen); })
        .def_prop_rw(
            "exception",
            [](Error &e) -> nb::object {
                void *user = e.error->user.load();
                return user == nullptr ? nb::none() : nb::borrow(static_cast<PyObject *>(user));
            },
            [](Error &e, nb::object exception) { // the first one stays: all failures share it as their cause
                void *none = nullptr;
                if (e.error->user.compare_exchange_strong(none, exception.ptr())) exception.release();
            });

    nb::class_<Storage>(m, "Storage")
        .def(nb::init<const char *>(), "name"_a)
        .def_prop_ro("name", [](Storage &s) { return std::string(s.storage->name); })
        .def("poison", [](Storage &s) { return wrap_error(ag_storage_poison(s.storage)); });

    nb::class_<Memory>(m, "Memory", nb::type_slots(memory_slots))
        .def(nb::init<size_t, size_t>(), "size"_a, "alignment"_a)
        .def_prop_ro("address", [](Memory &memory) { return reinterpret_cast<uintptr_t>(memory.data); })
        .def_prop_ro("size", [](Memory &memory) { return memory.size; });

    nb::class_<Notifier>(m, "Notifier")
        .def(nb::init<>())
        .def("fileno", [](Notifier &n) { return ag_notifier_fd(n.notifier); })
        .def("signal", [](Notifier &n) { ag_notifier_signal(n.notifier); })
        .def("drain", [](Notifier &n) { ag_notifier_drain(n.notifier); })
        .def("close", [](Notifier &n) { ag_notifier_close(n.notifier); });

    nb::class_<Pool>(m, "Pool")
        .def(nb::init<int, int, int, bool, nb::sequence>(), "n_threads"_a, "spin_us"_a, "priority"_a, "strict"_a,
             "mask"_a)
        .def_prop_ro("n_threads", [](Pool &p) { return ag_pool_n_threads(p.pool); })
        .def(
            "grow",
            [](Pool &p, int n) {
                Unlocked unlocked;
                return ag_pool_grow(p.pool, n);
            },
            "n_threads"_a)
        .def("pause", [](Pool &p) { ag_pool_pause(p.pool); })
        .def("resume", [](Pool &p) { ag_pool_resume(p.pool); })
        .def("stop", [](Pool &p) {
            Unlocked unlocked;
            ag_pool_stop(p.pool);
        });

    nb::class_<Plan>(m, "Plan")
        .def(nb::init<uint32_t, size_t>(), "cpu"_a, "work_base"_a)
        .def("add", plan_add, "op"_a, "name"_a, "dst"_a, "srcs"_a, "params"_a, "writes_leaf"_a)
        .def("seal", plan_seal, "reads"_a, "writes"_a, "partial"_a)
        .def("steps", plan_steps)
        .def_prop_ro("arena_size", [](Plan &p) { return ag_plan_arena_size(p.plan); })
        .def_prop_ro("cost_ns", [](Plan &p) { return p.plan->cost; });

    nb::class_<Desc>(m, "Desc");
    nb::class_<Span>(m, "Span").def(nb::init<uintptr_t, nb::tuple, nb::tuple, size_t, bool, Storage &, nb::object>(),
                                    "address"_a, "ne"_a, "nb"_a, "size"_a, "whole"_a, "storage"_a, "keep"_a);
    m.def(
        "upload",
        [](nb::handle array, Span &span, const std::string &operation) {
            return array_desc(false, array, span, operation);
        },
        "array"_a, "span"_a, "operation"_a);
    m.def(
        "download",
        [](nb::handle array, Span &span, const std::string &operation) {
            return array_desc(true, array, span, operation);
        },
        "array"_a, "span"_a, "operation"_a);
    m.def(
        "upload_bytes",
        [](nb::handle array, Span &span, size_t offset, bool whole, const std::string &operation) {
            return bytes_desc(false, array, span, offset, whole, operation);
        },
        "array"_a, "span"_a, "offset"_a, "whole"_a, "operation"_a);
    m.def(
        "download_bytes",
        [](nb::handle array, Span &span, size_t offset, const std::string &operation) {
            return bytes_desc(true, array, span, offset, false, operation);
        },
        "array"_a, "span"_a, "offset"_a, "operation"_a);
    m.def("copy", copy_desc, "dst"_a, "src"_a, "operation"_a);
    m.def("fill", fill_desc, "span"_a, "value"_a, "offset"_a, "size"_a, "whole"_a, "operation"_a);
    m.def("clear", clear_desc, "address"_a, "value"_a, "size"_a, "keep"_a);
    m.def("submit_run", submit_run, "stream"_a, "plan"_a, "arena"_a, "keep"_a, "sets"_a, "gets"_a);
    m.def("run_plan", plan_desc, "plan"_a, "arena"_a, "operation"_a, "keep"_a.none());
    m.def("mark", mark_desc, "operation"_a, "accepts"_a);
    m.def("delay", delay_desc, "seconds"_a, "operation"_a, "reads"_a, "writes"_a, "partial"_a);
    m.def("wait", wait_desc, "stream"_a, "ticket"_a.none());
    m.def("fail", fail_desc, "error"_a, "operation"_a, "writes"_a, "partial"_a);
    m.def("call", call_desc, "operation"_a, "reads"_a, "writes"_a, "partial"_a, "keep"_a.none());

    nb::class_<Op>(m, "Op")
        .def("done", &Op::done)
        .def_ro("ticket", &Op::ticket)
        .def_ro("stream", &Op::owner)
        .def("error", op_error)
        .def_prop_ro("derived", [](Op &op) { return op.done() && op.slot().derived; })
        .def("times", op_times)
        .def("abort", [](Op &op) { ag_stream_abort(op.stream, op.block, op.ticket); })
        .def("wait", op_wait, "timeout"_a);

    nb::class_<Stream>(m, "Stream")
        .def(
            "__init__",
            [](Stream *self, const char *name, nb::object pool, int n_threads) {
                ag_stream *stream = ag_stream_new(name, nb::cast<Pool &>(pool).pool, n_threads);
                if (stream == nullptr) throw std::bad_alloc();
                new (self) Stream(stream, pool);
            },
            "name"_a, "pool"_a, "n_threads"_a)
        .def_prop_ro("name", [](Stream &s) { return std::string(ag_stream_name(s.stream)); })
        .def_prop_ro("submitted", [](Stream &s) { return ag_stream_submitted(s.stream); })
        .def_prop_ro("completed", [](Stream &s) { return ag_stream_completed(s.stream); })
        .def_prop_ro("alive", [](Stream &s) { return ag_stream_alive(s.stream); })
        .def_prop_ro("closed", [](Stream &s) { return ag_stream_closed(s.stream); })
        .def_prop_rw(
            "n_threads", [](Stream &s) { return ag_stream_n_threads(s.stream); },
            [](Stream &s, int n) { ag_stream_set_n_threads(s.stream, n); })
        .def_prop_ro("kept", [](Stream &s) { return s.kept.size(); })
        .def_prop_ro("lost", [](Stream &s) { return wrap_error(ag_error_ref(ag_stream_lost(s.stream))); })
        .def("release_finished", [](Stream &s) { release_prefix(s.stream, s.kept); })
        .def("hold", [](Stream &s) { ag_stream_hold(s.stream); })
        .def("release", [](Stream &s) { return ag_stream_release(s.stream); })
        .def("close", [](Stream &s) { ag_stream_close(s.stream); })
        .def(
            "lose", [](Stream &s, Error &error) { ag_stream_lose(s.stream, error.error); }, "error"_a)
        .def("abort_all", [](Stream &s) { ag_stream_abort_all(s.stream); })
        .def(
            "watch",
            [](Stream &s, Notifier &n, uint64_t ticket) { return ag_stream_watch(s.stream, n.notifier, ticket); },
            "notifier"_a, "ticket"_a)
        .def(
            "unwatch", [](Stream &s, Notifier &n) { ag_stream_unwatch(s.stream, n.notifier); }, "notifier"_a)
        .def("take_failures", take_failures)
        .def("next_call", next_call, "timeout"_a)
        .def("finish_call", finish_call, "error"_a.none());
}
