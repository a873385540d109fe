// Operations that are described but not queued yet: copies, fills, plans, waits, calls.
//
// Not here: queueing them (stream.cpp).
#include "objects.h"

#include <cstring>
#include <set>
#include <vector>

namespace binding
{

static const char *intern(const std::string &text) // operation names: a handful of literals
{
    static nb::ft_mutex lock;
    static std::set<std::string> names;
    nb::ft_lock_guard guard(lock);
    return names.insert(text).first->c_str();
}

static void set_storages(ag_slot &slot, nb::handle reads, nb::handle writes, nb::handle partial)
{
    auto r = storages_of(reads), w = storages_of(writes), p = storages_of(partial);
    size_t n = r.size() + w.size() + p.size();
    ag_storage **list = slot.inline_storages;
    if (n > UINT16_MAX) throw nb::value_error("an operation has at most 65535 storages");
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

static Desc *desc(ag_kind kind, const std::string &operation, nb::handle keep)
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

template <typename Fill>
static nb::object finish(Desc *d, nb::handle reads, nb::handle writes, nb::handle partial, Fill fill)
{
    nb::object out = nb::cast(d, nb::rv_policy::take_ownership);
    set_storages(d->slot, reads, writes, partial);
    fill(d->slot);
    return out;
}

static void tidy(ag_copy &c)
{
    if (c.ne[0] * c.ne[1] * c.ne[2] * c.ne[3] == 0) c = ag_copy{c.dst, c.src, {1, 1, 1, 1}, {}, {}, 0};
    ag_copy_simplify(&c);
}

// Whether the bytes of a small array may be a mapped file's: a view of numpy's knows whose they are, or numpy owns
// them.
bool may_be_file(nb::handle array)
{
    static PyObject *base = PyUnicode_InternFromString("base");
    PyObject *owner = PyObject_GetAttr(array.ptr(), base);
    if (owner == nullptr) PyErr_Clear();
    const bool ours = owner == Py_None;
    Py_XDECREF(owner);
    return !ours;
}

void buffer_copy(ag_slot &slot, bool to_array, const Py_buffer &buffer, const Span &span)
{
    ag_copy &c = slot.u.copy;
    memcpy(c.ne, span.ne, sizeof c.ne);
    memcpy(to_array ? c.src_nb : c.dst_nb, span.nb, sizeof span.nb);
    int64_t *array_nb = to_array ? c.dst_nb : c.src_nb;
    if (buffer.ndim > 4 || (buffer.ndim > 0 && buffer.shape == nullptr))
        throw nb::value_error("an array may have at most four axes");
    if (static_cast<size_t>(buffer.itemsize) != span.size)
        throw nb::value_error("the array's elements do not have the size of the tensor's");
    if (to_array && buffer.readonly) throw nb::value_error("the array is read-only");
    int64_t step = buffer.itemsize;
    for (int d = 0; d < 4; ++d) {
        int axis = buffer.ndim - 1 - d;
        int64_t extent = axis >= 0 ? buffer.shape[axis] : 1;
        if (extent != c.ne[d]) throw nb::value_error("the array does not have the shape of the tensor");
        array_nb[d] = axis >= 0 && buffer.strides != nullptr ? buffer.strides[axis] : step;
        step *= extent;
    }
    c.item = span.size;
    auto *tensor = reinterpret_cast<uint8_t *>(span.address), *host = static_cast<uint8_t *>(buffer.buf);
    c.dst = to_array ? host : tensor;
    c.src = to_array ? tensor : host;
    tidy(c);
    if (to_array) {
        span.read_by(slot);
    } else {
        span.written_by(slot, span.whole);
    }
}

nb::object array_copy(ag_slot &slot, bool to_array, nb::handle array, const Span &span)
{
    nb::object view = nb::steal(PyMemoryView_FromObject(array.ptr()));
    if (!view.is_valid()) throw nb::python_error();
    buffer_copy(slot, to_array, *PyMemoryView_GET_BUFFER(view.ptr()), span);
    if (!to_array) slot.may_be_file = may_be_file(array);
    return nb::make_tuple(view, span.keep);
}

static nb::object array_desc(bool to_array, nb::handle array, nb::object span, const std::string &operation)
{
    Desc *d = desc(AG_KIND_COPY, operation, nb::handle());
    nb::object out = nb::cast(d, nb::rv_policy::take_ownership);
    d->keep = array_copy(d->slot, to_array, array, nb::cast<const Span &>(span)).release().ptr();
    d->span = std::move(span);
    d->to_array = to_array;
    return out;
}

// Contiguous bytes at `offset` of a span; the caller has checked the range.
static nb::object bytes_desc(bool to_array, nb::handle array, const Span &span, size_t offset, bool whole,
                             const std::string &operation)
{
    nb::object view = nb::steal(PyMemoryView_FromObject(array.ptr()));
    if (!view.is_valid()) throw nb::python_error();
    Py_buffer *buffer = PyMemoryView_GET_BUFFER(view.ptr());
    if (!PyBuffer_IsContiguous(buffer, 'C') || (to_array && buffer->readonly))
        throw nb::value_error("expected a contiguous array, writable if it is the target");
    span.check(offset, static_cast<size_t>(buffer->len));
    Desc *d = desc(AG_KIND_COPY, operation, nb::make_tuple(view, span.keep));
    nb::object out = nb::cast(d, nb::rv_policy::take_ownership);
    auto *tensor = reinterpret_cast<uint8_t *>(span.address + offset), *host = static_cast<uint8_t *>(buffer->buf);
    d->slot.u.copy = ag_copy{to_array ? host : tensor,        to_array ? tensor : host, {1, 1, 1, 1}, {}, {},
                             static_cast<size_t>(buffer->len)};
    if (to_array) {
        span.read_by(d->slot);
    } else {
        span.written_by(d->slot, whole);
        d->slot.may_be_file = may_be_file(array);
    }
    return out;
}

static nb::object copy_desc(const Span &dst, const Span &src, const std::string &operation)
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

// What runs remember of a stack of experts; see ag_expert_history.
struct ExpertHistory {
    std::vector<int32_t> ids;
    ag_expert_history own;

    explicit ExpertHistory(size_t n) : ids(n, -1), own{}
    {
        own.n = static_cast<int64_t>(n);
        own.ids = ids.data();
    }
    ExpertHistory(const ExpertHistory &) = delete;
};

// The part of an operation on experts that is the same for all; `keep` has all that it refers to.
static nb::object stack_desc(const Span &dst, const Span &src, size_t size, int64_t n, double latency,
                             double ns_per_byte, const std::string &operation, nb::handle keep)
{
    const bool fits =
        n >= 0 &&
        (n == 0 || (size <= src.bytes / static_cast<size_t>(n) && size <= dst.bytes / static_cast<size_t>(n)));
    if (!fits) throw nb::value_error("the matrices must lie within the tensors");
    Desc *d = desc(AG_KIND_EXPERTS, operation, keep);
    nb::object out = nb::cast(d, nb::rv_policy::take_ownership);
    ag_experts &e = d->slot.u.experts;
    e.dst = reinterpret_cast<uint8_t *>(dst.address);
    e.src = reinterpret_cast<const uint8_t *>(src.address);
    e.size = size;
    e.n = n;
    e.latency = latency <= 0 ? 0 : static_cast<uint64_t>(latency * 1e9);
    e.ns_per_byte = ns_per_byte;
    src.read_by(d->slot);
    return out;
}

static nb::object experts_desc(const Span &dst, const Span &src, const Span &ids, size_t size, int64_t n,
                               double latency, double ns_per_byte, const std::string &operation, nb::object history)
{
    if (ids.size != sizeof(int32_t)) throw nb::value_error("ids must be int32");
    nb::object out = stack_desc(dst, src, size, n, latency, ns_per_byte, operation,
                                nb::make_tuple(dst.keep, src.keep, ids.keep, history));
    Desc &d = nb::cast<Desc &>(out);
    ag_experts &e = d.slot.u.experts;
    e.ids = reinterpret_cast<const uint8_t *>(ids.address);
    memcpy(e.ids_ne, ids.ne, sizeof e.ids_ne);
    memcpy(e.ids_nb, ids.nb, sizeof e.ids_nb);
    ids.read_by(d.slot);
    if (!history.is_none()) {
        e.history = &nb::cast<ExpertHistory &>(history).own;
        e.guess = AG_EXPERTS_NAMED;
        if (e.ids_ne[0] * e.ids_ne[1] != e.history->n) throw nb::value_error("the history is of another number of ids");
        dst.read_by(d.slot); // what was guessed is there
    }
    dst.written_by(d.slot, true);
    return out;
}

// Guess number `i`. The first one writes the tensor anew; a failure of it is a failure of the others.
static nb::object guess_desc(const Span &dst, const Span &src, size_t size, int64_t n, double latency,
                             double ns_per_byte, const std::string &operation, nb::object history, int64_t i)
{
    ag_expert_history &own = nb::cast<ExpertHistory &>(history).own;
    if (i < 0 || i >= own.n) throw nb::value_error("there is no such guess");
    nb::object out =
        stack_desc(dst, src, size, n, latency, ns_per_byte, operation, nb::make_tuple(dst.keep, src.keep, history));
    Desc &d = nb::cast<Desc &>(out);
    d.slot.u.experts.history = &own;
    d.slot.u.experts.guess = i;
    if (i > 0) dst.read_by(d.slot);
    dst.written_by(d.slot, true);
    return out;
}

static nb::object note_desc(nb::object history)
{
    Desc *d = desc(AG_KIND_EXPERTS, "note", nb::make_tuple(history));
    nb::object out = nb::cast(d, nb::rv_policy::take_ownership);
    d->slot.u.experts.history = &nb::cast<ExpertHistory &>(history).own;
    d->slot.u.experts.guess = AG_EXPERTS_NOTE;
    return out;
}

static nb::object fill_desc(const Span &span, int value, size_t offset, size_t size, bool whole,
                            const std::string &operation)
{
    span.check(offset, size);
    Desc *d = desc(AG_KIND_FILL, operation, span.keep);
    nb::object out = nb::cast(d, nb::rv_policy::take_ownership);
    d->slot.u.fill.dst = reinterpret_cast<uint8_t *>(span.address + offset);
    d->slot.u.fill.value = value;
    d->slot.u.fill.size = size;
    span.written_by(d->slot, whole);
    return out;
}

static nb::object clear_desc(uintptr_t address, int value, size_t size, nb::tuple writes, nb::handle keep)
{
    return finish(desc(AG_KIND_FILL, "clear", keep), nb::tuple(), writes, nb::tuple(), [&](ag_slot &slot) {
        slot.u.fill.dst = reinterpret_cast<uint8_t *>(address);
        slot.u.fill.value = value;
        slot.u.fill.size = size;
    });
}

static nb::object plan_desc(nb::object plan, uintptr_t arena, const std::string &operation, nb::handle keep)
{
    return finish(desc(AG_KIND_PLAN, operation, keep), nb::tuple(), nb::tuple(), nb::tuple(), [&](ag_slot &slot) {
        slot.u.plan.plan = ag_plan_ref(nb::cast<Plan &>(plan).plan);
        slot.u.plan.arena = arena;
        slot.u.plan.user = keep.is_none() ? nullptr : keep.ptr(); // kept until the operation is done
    });
}

static nb::object mark_desc(const std::string &operation, nb::tuple accepts)
{
    return finish(desc(AG_KIND_NOP, operation, nb::handle()), nb::tuple(), accepts, nb::tuple(), [](ag_slot &) {});
}

static nb::object delay_desc(double seconds, const std::string &operation, nb::tuple reads, nb::tuple writes,
                             nb::tuple partial)
{
    return finish(desc(AG_KIND_DELAY, operation, nb::handle()), reads, writes, partial,
                  [&](ag_slot &slot) { slot.u.delay.ns = seconds <= 0 ? 0 : static_cast<uint64_t>(seconds * 1e9); });
}

static nb::object wait_desc(Stream &other, nb::object ticket)
{
    return finish(desc(AG_KIND_WAIT, "wait", nb::handle()), nb::tuple(), nb::tuple(), nb::tuple(), [&](ag_slot &slot) {
        slot.u.wait.ticket = ticket.is_none() ? AG_TAIL : nb::cast<uint64_t>(ticket);
        slot.u.wait.stream = ag_stream_ref(other.stream);
    });
}

static nb::object fail_desc(Error &error, const std::string &operation, nb::tuple writes, nb::tuple partial)
{
    return finish(desc(AG_KIND_FAIL, operation, nb::handle()), nb::tuple(), writes, partial,
                  [&](ag_slot &slot) { slot.u.fail.error = ag_error_ref(error.error); });
}

static nb::object call_desc(const std::string &operation, nb::tuple reads, nb::tuple writes, nb::tuple partial,
                            nb::handle keep)
{
    return finish(desc(AG_KIND_CALL, operation, keep), reads, writes, partial, [&](ag_slot &slot) {
        slot.u.call.user = keep.is_none() ? nullptr : keep.ptr(); // kept until the operation is done
    });
}

// The bytes from the first to behind the last item of a view; `item` is what one item, or row, takes.
static void add_range(nb::list &out, uintptr_t address, const int64_t *ne, const int64_t *strides, int64_t item,
                      bool writes)
{
    for (int i = 0; i < 4; ++i) {
        if (ne[i] <= 0) return;
        item += (ne[i] - 1) * strides[i];
    }
    out.append(nb::make_tuple(address, address + static_cast<uintptr_t>(item), writes));
}

// The same of a node's operand, row by row: blocks have no stride per element.
static void add_view(nb::list &out, const agk_view &view, uintptr_t arena, bool writes)
{
    const int64_t rows[4] = {1, view.ne[1], view.ne[2], view.ne[3]};
    const agk_type_traits *traits = agk_traits(view.type);
    if (view.ne[0] <= 0 || traits->name == nullptr) return;
    int64_t row = traits->blck_size > 1 ? static_cast<int64_t>(agk_row_size(view.type, view.ne[0]))
                                        : static_cast<int64_t>(traits->type_size) + (view.ne[0] - 1) * view.nb[0];
    add_range(out, view.addr + (arena & view.arena_mask), rows, view.nb, row, writes);
}

// What of the memory of tensors an operation touches: (first byte, one behind the last, whether it writes). For host
// arrays see desc_host.
static nb::list desc_ranges(Desc &desc)
{
    nb::list out;
    const ag_slot &slot = desc.slot;
    if (desc.used) return out;
    if (slot.kind == AG_KIND_COPY) {
        const ag_copy &copy = slot.u.copy;
        int64_t item = static_cast<int64_t>(copy.item);
        bool reads = slot.n_reads > 0, writes = slot.n_writes + slot.n_partial > 0;
        if (reads) add_range(out, reinterpret_cast<uintptr_t>(copy.src), copy.ne, copy.src_nb, item, false);
        if (writes) add_range(out, reinterpret_cast<uintptr_t>(copy.dst), copy.ne, copy.dst_nb, item, true);
    } else if (slot.kind == AG_KIND_EXPERTS) {
        const ag_experts &e = slot.u.experts;
        const int64_t ne[4] = {e.ids_ne[0], e.ids_ne[1], 1, 1}, nb[4] = {e.ids_nb[0], e.ids_nb[1], 0, 0};
        auto src = reinterpret_cast<uintptr_t>(e.src), dst = reinterpret_cast<uintptr_t>(e.dst);
        size_t size = e.size * static_cast<size_t>(e.n);
        if (e.ids != nullptr) add_range(out, reinterpret_cast<uintptr_t>(e.ids), ne, nb, sizeof(int32_t), false);
        if (size == 0) return out;
        out.append(nb::make_tuple(src, src + size, false));
        out.append(nb::make_tuple(dst, dst + size, true));
    } else if (slot.kind == AG_KIND_FILL) {
        uintptr_t start = reinterpret_cast<uintptr_t>(slot.u.fill.dst);
        if (slot.u.fill.size > 0) out.append(nb::make_tuple(start, start + slot.u.fill.size, true));
    } else if (slot.kind == AG_KIND_PLAN) {
        const ag_plan *plan = slot.u.plan.plan;
        for (size_t i = 0; i < plan->n_nodes; ++i) {
            const agk_node *node = plan->nodes[i];
            for (int32_t k = 0; k < node->n_src; ++k) {
                if (node->src[k].type != AGK_NONE) add_view(out, node->src[k], slot.u.plan.arena, false);
            }
            add_view(out, node->dst, slot.u.plan.arena, true);
        }
    }
    return out;
}

// The same of the array that a transfer is from or to, with the view that pins it.
static nb::object desc_host(Desc &desc)
{
    const ag_slot &slot = desc.slot;
    if (desc.used || slot.kind != AG_KIND_COPY || desc.keep == nullptr) return nb::none();
    bool to_array = slot.n_writes + slot.n_partial == 0;
    if (!to_array && slot.n_reads > 0) return nb::none(); // between tensors
    const ag_copy &copy = slot.u.copy;
    const int64_t *strides = to_array ? copy.dst_nb : copy.src_nb;
    int64_t first = 0, last = static_cast<int64_t>(copy.item);
    for (int i = 0; i < 4; ++i) {
        int64_t step = (copy.ne[i] - 1) * strides[i];
        (step < 0 ? first : last) += step;
    }
    if (copy.item == 0) return nb::none();
    auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to_array ? copy.dst : copy.src));
    return nb::make_tuple(address + first, address + last, to_array, nb::handle(PyTuple_GET_ITEM(desc.keep, 0)));
}

// (key of the stream, ticket or None for all that is queued there) if the operation waits for a stream.
static nb::object desc_waits(Desc &desc)
{
    if (desc.used || desc.slot.kind != AG_KIND_WAIT) return nb::none();
    uint64_t ticket = desc.slot.u.wait.ticket;
    return nb::make_tuple(reinterpret_cast<uintptr_t>(desc.slot.u.wait.stream),
                          ticket == AG_TAIL ? nb::none() : nb::cast(ticket));
}

void bind_operations(nb::module_ &m)
{
    nb::class_<ExpertHistory>(m, "ExpertHistory")
        .def(nb::init<size_t>(), "n"_a)
        .def_prop_ro("n", [](const ExpertHistory &self) { return self.own.n; });
    nb::class_<Desc>(m, "Desc")
        .def_prop_ro("operation", [](Desc &d) { return text_of(d.slot.operation); })
        .def_prop_ro("has_array", [](Desc &d) { return d.span.is_valid(); })
        .def(
            "set_pace",
            [](Desc &d, double seconds) { d.slot.pace = seconds <= 0 ? 0 : static_cast<uint64_t>(seconds * 1e9); },
            "seconds"_a)
        .def("ranges", desc_ranges)
        .def("host", desc_host)
        .def("waits", desc_waits);
    nb::class_<Span>(m, "Span").def(nb::init<uintptr_t, nb::tuple, nb::tuple, size_t, bool, Storage &, nb::object>(),
                                    "address"_a, "ne"_a, "nb"_a, "size"_a, "whole"_a, "storage"_a, "keep"_a);
    m.def(
        "upload",
        [](nb::handle array, nb::typed<nb::object, Span> span, const std::string &operation) {
            return array_desc(false, array, span, operation);
        },
        "array"_a, "span"_a, "operation"_a);
    m.def(
        "download",
        [](nb::handle array, nb::typed<nb::object, Span> span, const std::string &operation) {
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
    m.def("experts", experts_desc, "dst"_a, "src"_a, "ids"_a, "size"_a, "n"_a, "latency"_a, "ns_per_byte"_a,
          "operation"_a, "history"_a.none());
    m.def("guess_experts", guess_desc, "dst"_a, "src"_a, "size"_a, "n"_a, "latency"_a, "ns_per_byte"_a, "operation"_a,
          "history"_a, "guess"_a);
    m.def("note_experts", note_desc, "history"_a);
    m.def("fill", fill_desc, "span"_a, "value"_a, "offset"_a, "size"_a, "whole"_a, "operation"_a);
    m.def("clear", clear_desc, "address"_a, "value"_a, "size"_a, "writes"_a, "keep"_a);
    m.def("run_plan", plan_desc, "plan"_a, "arena"_a, "operation"_a, "keep"_a.none());
    m.def("mark", mark_desc, "operation"_a, "accepts"_a);
    m.def("delay", delay_desc, "seconds"_a, "operation"_a, "reads"_a, "writes"_a, "partial"_a);
    m.def("wait", wait_desc, "stream"_a, "ticket"_a.none());
    m.def("fail", fail_desc, "error"_a, "operation"_a, "writes"_a, "partial"_a);
    m.def("call", call_desc, "operation"_a, "reads"_a, "writes"_a, "partial"_a, "keep"_a.none());
}

} // namespace binding
