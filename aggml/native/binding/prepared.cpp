// Runs that are repeated with the same words: inputs, one plan and outputs, over arrays that differ from run to run.
// One call from Python enqueues all of it on one stream.
//
// A Python object keeps the plan and the scratch, so that the garbage collector sees them. Not here: what makes a run
// the same (stream/prepared.py), runs over several streams (script.cpp).
#include "objects.h"

#include <cstring>

namespace binding
{

namespace
{

struct alignas(ag_slot) SlotBytes { // a slot that is not queued yet is plain bytes
    unsigned char bytes[sizeof(ag_slot)];
};

// The slots of one run, in memory of their own if they are many. Drops what was built unless it gets queued.
struct Slots {
    static constexpr size_t INLINE = 6;
    SlotBytes inlined[INLINE];
    std::vector<SlotBytes> many;
    size_t built = 0;
    bool queued = false;
    explicit Slots(size_t n)
    {
        if (n > INLINE) many.resize(n);
    }
    Slots(const Slots &) = delete;
    ~Slots()
    {
        for (size_t i = 0; !queued && i < built; ++i) ag_slot_drop(first() + i);
    }
    ag_slot *first()
    {
        return reinterpret_cast<ag_slot *>(many.empty() ? inlined : many.data());
    }
    ag_slot &next(ag_kind kind, const char *operation)
    {
        ag_slot *slot = new (first() + built) ag_slot{};
        ++built;
        slot->kind = kind;
        slot->operation = operation;
        return *slot;
    }
};

// Estimated time of a plan on one thread. A turn of asyncio takes 3 us, but 15 us more than a wait without it when the
// plan's weights have pushed Python out of the caches.
constexpr uint64_t LASTS_NS = 50000;

// A tensor that is written from an array, or read into one.
struct Side {
    nb::object span, dtype, shape; // the array's element type and shape
    std::vector<Py_ssize_t> extents;
    bool bits; // its elements are 16 bits that the buffer protocol does not know: bfloat16

    const Span &tensor() const
    {
        return *nb::inst_ptr<Span>(span);
    }
    bool fits(nb::handle x) const
    {
        static PyObject *dtype_name = PyUnicode_InternFromString("dtype");
        nb::object found = nb::steal(PyObject_GetAttr(x.ptr(), dtype_name));
        if (!found.is_valid()) throw nb::python_error();
        return found.is(dtype);
    }
    bool shaped(const Py_buffer &buffer) const
    {
        return static_cast<size_t>(buffer.ndim) == extents.size() &&
               (extents.empty() || memcmp(buffer.shape, extents.data(), extents.size() * sizeof extents[0]) == 0);
    }
};

struct Prepared {
    nb::object owner; // the Stream
    nb::object plan;  // the native one
    std::vector<Side> sets, gets;
    nb::object array, empty, uint16; // of numpy: the class of arrays, what makes one, a type of 16 bits
    nb::object single;               // True: one output is the value; False: a list; None: there is no value

    Prepared(nb::object stream, nb::object plan_, nb::sequence sets_, nb::sequence gets_, nb::object single_,
             nb::object array_, nb::object empty_, nb::object uint16_)
        : owner(std::move(stream)), plan(std::move(plan_)), sets(sides(sets_)), gets(sides(gets_)),
          array(std::move(array_)), empty(std::move(empty_)), uint16(std::move(uint16_)), single(std::move(single_))
    {
        nb::cast<Stream &>(owner);
        nb::cast<Plan &>(plan);
        if (single.is(Py_True) && gets.size() != 1) throw nb::value_error("a single result needs exactly one output");
    }
    Prepared(const Prepared &) = delete;

    static std::vector<Side> sides(nb::sequence given)
    {
        std::vector<Side> out;
        for (nb::handle h : given) {
            Side side = {nb::borrow(h[0]), nb::borrow(h[1]), nb::borrow(h[2]), {}, nb::cast<bool>(h[3])};
            nb::cast<const Span &>(side.span);
            for (nb::handle extent : side.shape) side.extents.push_back(nb::cast<Py_ssize_t>(extent));
            out.push_back(std::move(side));
        }
        return out;
    }

    nb::object submit(nb::handle keep, uintptr_t arena, nb::handle inputs);
    nb::object submit_arrays(nb::handle keep, uintptr_t arena, nb::list arrays);

  private:
    bool add_input(Slots &slots, const Side &side, nb::handle x, nb::object &kept);
    nb::object add_output(Slots &slots, const Side &side);
    nb::object enqueue(Slots &slots, nb::handle keep, uintptr_t arena, nb::object *kept);
};

// What one run keeps until its last operation is done: the arrays, and what Python gave along, which holds this object
// and with it the memory of the tensors. The Future of a run is done with that operation.
struct Kept {
    static constexpr size_t INLINE = 6;
    nb::object inlined[INLINE];
    std::vector<nb::object> many;
    nb::object *objects;
    explicit Kept(size_t n) : objects(inlined)
    {
        if (n <= INLINE) return;
        many.resize(n);
        objects = many.data();
    }
};

// False: it is no array of just the tensor's element type and shape.
bool Prepared::add_input(Slots &slots, const Side &side, nb::handle x, nb::object &kept)
{
    if (reinterpret_cast<PyObject *>(Py_TYPE(x.ptr())) != array.ptr() || !side.fits(x)) return false;
    nb::object bits = side.bits ? x.attr("view")(uint16) : nb::borrow(x);
    // numpy frees the memory of an array when the array goes, exported or not: the reference is what keeps it.
    BufferView view(bits, PyBUF_STRIDES);
    if (!side.shaped(view.b)) return false;
    buffer_copy(slots.next(AG_KIND_COPY, "set"), false, view.b, side.tensor());
    slots.first()[slots.built - 1].may_be_file = may_be_file(x);
    kept = std::move(bits);
    return true;
}

nb::object Prepared::add_output(Slots &slots, const Side &side)
{
    nb::object result = empty(side.shape, side.dtype);
    BufferView view(side.bits ? nb::object(result.attr("view")(uint16)) : result, PyBUF_STRIDES | PyBUF_WRITABLE);
    buffer_copy(slots.next(AG_KIND_COPY, "get"), true, view.b, side.tensor());
    return result;
}

// The plan behind what is built, and the outputs; then all of it is queued, or nothing. -> (Ops, the value).
nb::object Prepared::enqueue(Slots &slots, nb::handle keep, uintptr_t arena, nb::object *kept)
{
    Stream &stream = *nb::inst_ptr<Stream>(owner);
    ag_slot &compute = slots.next(AG_KIND_PLAN, "graph_compute");
    compute.u.plan.plan = ag_plan_ref(nb::inst_ptr<Plan>(plan)->plan);
    compute.u.plan.arena = arena;
    compute.u.plan.user = keep.ptr();
    const size_t n = sets.size() + 1 + gets.size();
    for (size_t i = 0; i < gets.size(); ++i) kept[sets.size() + 1 + i] = add_output(slots, gets[i]);
    kept[sets.size()] = nb::borrow(keep);

    nb::object value = nb::none();
    if (single.is(Py_True)) {
        value = kept[n - 1];
    } else if (!single.is_none()) {
        nb::list results;
        for (size_t i = 0; i < gets.size(); ++i) results.append(kept[sets.size() + 1 + i]);
        value = std::move(results);
    }
    nb::object all = n == 1 ? kept[0] : nb::steal(PyTuple_New(static_cast<Py_ssize_t>(n)));
    nb::object ops = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(n)));
    if (!all.is_valid() || !ops.is_valid()) throw nb::python_error();
    for (size_t i = 0; n > 1 && i < n; ++i)
        PyTuple_SET_ITEM(all.ptr(), static_cast<Py_ssize_t>(i), kept[i].release().ptr());

    ag_block *inline_blocks[Slots::INLINE];
    uint64_t inline_tickets[Slots::INLINE];
    std::vector<ag_block *> many_blocks(n > Slots::INLINE ? n : 0);
    std::vector<uint64_t> many_tickets(n > Slots::INLINE ? n : 0);
    ag_block **blocks = n > Slots::INLINE ? many_blocks.data() : inline_blocks;
    uint64_t *tickets = n > Slots::INLINE ? many_tickets.data() : inline_tickets;
    ag_batch batch = {stream.stream, slots.first(), n, blocks, tickets};
    stream.keeper->release();
    ag_submit_status status = ag_submit(&batch, 1);
    if (status != AG_SUBMIT_OK) raise_submit(status, ag_stream_name(stream.stream));
    slots.queued = true;
    stream.keeper->keep(tickets[n - 1], all.release().ptr());
    const bool lasts = nb::inst_ptr<Plan>(plan)->plan->cost > LASTS_NS;
    for (size_t i = 0; i < n; ++i) {
        Op *queued = new Op(stream.stream, blocks[i], tickets[i], owner);
        queued->lasts = lasts;
        nb::object op = nb::cast(queued, nb::rv_policy::take_ownership);
        PyTuple_SET_ITEM(ops.ptr(), static_cast<Py_ssize_t>(i), op.release().ptr());
    }
    stream.keeper->release(); // what was small has been done here already: let go of it at once
    return nb::steal(PyTuple_Pack(2, ops.ptr(), value.ptr()));
}

// inputs: a dict of arrays in the order of `sets`, or None. None: one of them has to be looked at in Python.
nb::object Prepared::submit(nb::handle keep, uintptr_t arena, nb::handle inputs)
{
    Slots slots(sets.size() + 1 + gets.size());
    Kept kept(sets.size() + 1 + gets.size());
    size_t i = 0;
    if (PyDict_Check(inputs.ptr())) {
        nb::ft_object_guard guard(inputs);
        PyObject *key, *x;
        for (Py_ssize_t at = 0; PyDict_Next(inputs.ptr(), &at, &key, &x); ++i) {
            nb::object given = nb::borrow(x);
            if (i == sets.size() || !add_input(slots, sets[i], given, kept.objects[i])) return nb::none();
        }
    }
    if (i != sets.size()) return nb::none();
    return enqueue(slots, keep, arena, kept.objects);
}

// The same over what Python has looked at: anything with the buffer protocol, of the tensors' shapes.
nb::object Prepared::submit_arrays(nb::handle keep, uintptr_t arena, nb::list arrays)
{
    if (nb::len(arrays) != sets.size()) throw nb::value_error("expected one array for each input");
    Slots slots(sets.size() + 1 + gets.size());
    Kept kept(sets.size() + 1 + gets.size());
    for (size_t i = 0; i < sets.size(); ++i)
        kept.objects[i] = array_copy(slots.next(AG_KIND_COPY, "set"), false, arrays[i], sets[i].tensor());
    return enqueue(slots, keep, arena, kept.objects);
}

} // namespace

void bind_prepared(nb::module_ &m)
{
    nb::class_<Prepared>(m, "Prepared")
        .def(nb::init<nb::object, nb::object, nb::sequence, nb::sequence, nb::object, nb::object, nb::object,
                      nb::object>(),
             "stream"_a, "plan"_a, "sets"_a, "gets"_a, "single"_a.none(), "array"_a, "empty"_a, "uint16"_a)
        .def("submit", &Prepared::submit, "keep"_a, "arena"_a, "inputs"_a.none())
        .def("submit_arrays", &Prepared::submit_arrays, "keep"_a, "arena"_a, "arrays"_a);
}

} // namespace binding
